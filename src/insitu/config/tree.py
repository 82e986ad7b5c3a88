"""The one config tree. A recipe is a TOML file with any of its sections."""

from insitu.config.build import BuildConfig
from insitu.config.engine import EngineConfig
from insitu.config.evaluate import EvalConfig
from insitu.config.gateway import GatewayConfig
from insitu.config.midtrain import MidtrainConfig
from insitu.config.policy import PolicyConfig
from insitu.config.product import ProductConfig
from insitu.config.reward import RewardConfig
from insitu.config.rl import RLConfig
from insitu.config.rollout import RolloutConfig
from insitu.config.run import RunConfig
from insitu.config.sandbox import SandboxConfig
from insitu.config.section import Section
from insitu.config.tasks import TasksConfig
from insitu.config.train import TrainConfig
from insitu.types import ConfigError


class Config(Section):
    """Everything that a run depends on besides its inputs. Each verb reads the sections it needs.

    Example: `load(Path("recipes/demo/rl.toml"), ["rl.group_size=16"]).rl.group_size == 16`.
    """

    run: RunConfig = RunConfig()
    """The run as a whole."""
    policy: PolicyConfig = PolicyConfig()
    """The model that is trained."""
    product: ProductConfig = ProductConfig()
    """The agent that the policy works inside."""
    tasks: TasksConfig = TasksConfig()
    """Tasks to train on and to evaluate on."""
    build: BuildConfig = BuildConfig()
    """What `insitu tasks build` makes."""
    sandbox: SandboxConfig = SandboxConfig()
    """The isolated computers."""
    engine: EngineConfig = EngineConfig()
    """What serves the policy."""
    gateway: GatewayConfig = GatewayConfig()
    """Sampling and limits of the product's calls."""
    rollout: RolloutConfig = RolloutConfig()
    """How episodes are kept in flight."""
    reward: RewardConfig = RewardConfig()
    """What an episode is worth."""
    rl: RLConfig = RLConfig()
    """The loop."""
    train: TrainConfig = TrainConfig()
    """The RL step."""
    midtrain: MidtrainConfig = MidtrainConfig()
    """Learning before RL."""
    eval: EvalConfig = EvalConfig()
    """How policies are compared."""

    def require(self, *keys: str) -> None:
        """Refuse a config in which one of `keys` (`policy.model`) is empty.

        Raises:
            ConfigError: names the first key that is, and says how to set it.
        """
        for key in keys:
            value: object = self
            for part in key.split("."):
                value = getattr(value, part)
            if not value:
                raise ConfigError(
                    f"{key} is not set", remedy=f"set it in the recipe or with --set {key}=…"
                )
