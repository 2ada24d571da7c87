"""Schedules that are searched for and bounded."""
