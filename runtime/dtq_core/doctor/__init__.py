"""What is wrong with an installation: facts are gathered once, checks are pure functions over them (docs/doctor.md)."""

from dtq_core.doctor.checks import examine
from dtq_core.doctor.facts import Facts, gather
from dtq_core.doctor.finding import WHY, Finding, NotChecked, Report, Severity

__all__ = ["WHY", "Facts", "Finding", "NotChecked", "Report", "Severity", "examine", "gather"]
