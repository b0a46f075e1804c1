"""Schedules: when runs begin by themselves, who begins them, and who is told how they went."""
