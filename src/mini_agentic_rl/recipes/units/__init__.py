"""Units: stories in feet, gallons or furlongs, a converter to the metric system, and a calculator. The main job."""

from .units import Units, convert

__all__ = ["Units", "convert"]
