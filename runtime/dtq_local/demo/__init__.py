"""What `dtq demo` fills a server with: a made-up day of a shop, played through the real calls with the clock moved back."""

from dtq_local.demo.day import Day, DemoReport, holds_tasks

__all__ = ["Day", "DemoReport", "holds_tasks"]
