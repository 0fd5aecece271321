"""The worker of a process of `manage.py headrace_worker`, made of what the command has left in the environment."""

from __future__ import annotations

import json
import os

from headrace._django.commands import VARIABLE
from headrace._django.running import worker_of

worker = worker_of(**json.loads(os.environ.get(VARIABLE, "{}")))
