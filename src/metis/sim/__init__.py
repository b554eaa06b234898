"""The simulator: a provider on loopback that answers every protocol by fixed rules."""

from metis.sim.answer import Answer
from metis.sim.behave import Behave
from metis.sim.brain import Brain
from metis.sim.call import Settings
from metis.sim.script import Script
from metis.sim.server import Simulator
from metis.sim.service import Service

__all__ = ["Answer", "Behave", "Brain", "Script", "Service", "Settings", "Simulator"]
