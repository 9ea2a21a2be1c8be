"""From a TOML file, the environment and the defaults to one frozen Config; each room gets its own part."""

from llmgw.config.describe import describe
from llmgw.config.load import Config, load
from llmgw.config.problems import ConfigError, Problem
from llmgw.config.reload import Reloaded, reload

__all__ = ["Config", "ConfigError", "Problem", "Reloaded", "describe", "load", "reload"]
