"""The sections of the report: a file each, with a function from the source of a report to a Section."""
