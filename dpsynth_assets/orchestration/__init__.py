"""What imports Dagster: components, assets, checks, schedules, resources, the web server."""
