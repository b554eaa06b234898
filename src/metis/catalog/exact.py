"""Exact: arithmetic with money."""

from decimal import Context, Inexact, InvalidOperation

EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
"""Money is never rounded: in this context a result that does not fit is an error."""
