"""The simulator: a provider on loopback that serves every protocol and replies by fixed rules."""

from metis.sim.faults import Fault
from metis.sim.model_output import ModelOutput
from metis.sim.request import Settings
from metis.sim.responder import Responder
from metis.sim.server import Simulator
from metis.sim.service import Script, Service

__all__ = ["Fault", "ModelOutput", "Responder", "Script", "Service", "Settings", "Simulator"]
