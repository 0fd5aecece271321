from __future__ import annotations
import os, time
import pytest
from hypothesis import HealthCheck, Phase, settings, seed
from hypothesis.stateful import run_state_machine_as_test
from tests.model.machine import Machine
from tests.servers import Server

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "60"))
STEPS = int(os.environ.get("MODEL_STEPS", "50"))
SEED = int(os.environ.get("MODEL_SEED", "1"))
PROFILE = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)

def test_model(server: Server) -> None:
    run_state_machine_as_test(seed(SEED)(lambda: Machine(server)), settings=PROFILE)
