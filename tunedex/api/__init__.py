"""What is served: the FastAPI app, its routes and the dashboard."""
