"""From the judge's own output to a verdict or a typed reason. Pure and total: nothing raises."""

from autoj_reward.parse.comparison import ParsedVerdict, parse_comparison
from autoj_reward.parse.rating import ParsedRating, parse_rating
from autoj_reward.parse.slot import ParseFailure

__all__ = ["ParseFailure", "ParsedRating", "ParsedVerdict", "parse_comparison", "parse_rating"]
