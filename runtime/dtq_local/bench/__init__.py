"""What `dtq bench` does: DTQ beside a bare loop on the user's own server, in interleaved rounds, and nothing left behind."""

from dtq_local.bench.measure import BenchReport, Wanted, measure

__all__ = ["BenchReport", "Wanted", "measure"]
