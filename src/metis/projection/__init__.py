"""What a target can carry: the one step from a conversation to what is sent, and its losses."""

from metis.projection.loss import Change, Loss
from metis.projection.pipeline import Projection, project
from metis.projection.target import Target

__all__ = ["Change", "Loss", "Projection", "Target", "project"]
