"""What is served: the FastAPI app, its routes and the dashboard.

`create_app` makes the app. The room needs the ``server`` extra and loads neither torch nor Optuna.
"""

from tunedex.api.app import create_app
from tunedex.api.settings import Settings

__all__ = ["Settings", "create_app"]
