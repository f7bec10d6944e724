"""A loop of your own around this bundle's policy: needs numpy and onnxruntime. python example.py

``run_policy.py`` does the same with checks; contract.json says what the observation and the parameters mean.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main() -> None:
    """Ten steps of one episode, on observations of zeros."""
    bundle = Path(__file__).parent
    contract = json.loads((bundle / "contract.json").read_text(encoding="utf-8"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for key, value in contract["model"]["session_options"].items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(bundle / contract["model"]["path"], options, providers=["CPUExecutionProvider"])
    inputs = {spec["name"]: np.zeros([1, *spec["shape"][1:]], spec["dtype"]) for spec in contract["inputs"]}
    states = [state["input"] for state in contract["recurrent_state"]]
    observed = [name for name in inputs if name not in states]  # several of a Dict observation
    for step in range(10):
        for name in observed:
            inputs[name][0] = name == "action_mask"  # write your observation here; a mask has 1 for allowed actions
        if step == 0:  # or wherever an episode begins
            for state in states:
                inputs[state][...] = 0
        params, *following = session.run(None, inputs)
        inputs.update(zip(states, following, strict=True))
        print(step, params[0].tolist())  # contract.json, "action": what turns these into an action


if __name__ == "__main__":
    main()
