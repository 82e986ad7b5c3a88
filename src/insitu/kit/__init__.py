"""Small parts with no opinion: a closed list (log, clock, retry, atomic, digest, codec)."""
