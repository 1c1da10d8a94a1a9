"""Dynamic routing without votes, against the reference with them."""

from .twins import Twins


class TestDynamic(Twins):
    routing = "dynamic"
