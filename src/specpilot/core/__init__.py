"""Frozen records that cross a process or reach the disk, shared by every part of the judge."""
