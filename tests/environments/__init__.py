"""Environments whose rows and returns are known in closed form, registered with gymnasium on import.

``tests.environments:ClosedForm-v0`` is made by any function that takes a gymnasium id.
"""

from __future__ import annotations

import gymnasium

_SINGLE = "tests.environments.closed_form:ClosedFormEnv"
_VECTOR = "tests.environments.closed_form:ClosedFormVectorEnv"

gymnasium.register("ClosedForm-v0", entry_point=_SINGLE)
gymnasium.register("ClosedFormLimited-v0", entry_point=_SINGLE, max_episode_steps=3)
for _name, _mode in (("NextStep", "next_step"), ("SameStep", "same_step")):
    gymnasium.register(
        f"ClosedForm{_name}-v0",
        entry_point=_SINGLE,
        vector_entry_point=_VECTOR,
        kwargs={"autoreset_mode": _mode},
    )
gymnasium.register("ClosedFormMislabelled-v0", vector_entry_point=_VECTOR, kwargs={"autoreset_mode": "mislabelled"})
gymnasium.register("ClosedFormUnlabelled-v0", vector_entry_point=_VECTOR, kwargs={"autoreset_mode": "unlabelled"})
