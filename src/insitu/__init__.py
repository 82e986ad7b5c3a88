"""insitu: train an open-weights model into the coding-agent model of one product.

Importing this package loads nothing heavy; each room is imported where it is used.
"""

__version__ = "0.1.0"
