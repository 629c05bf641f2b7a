"""All modules that import Dagster: components, assets, checks, schedules, resources, web server."""
