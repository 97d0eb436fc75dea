"""Names of files in a run directory, for those who look at one without torch."""

FAILURE = "failed.json"  # is there if a run failed before it had a run.json
TERMS = "federation.json"  # is there if the run is across hospitals
FEDERATION_STATE = "federation-state.json"  # what its coordinator knows of the sites now, as it changes
AUDIT = "audit.json"  # what attacks on the run found out, if it was audited
WIRE = "wire.jsonl"  # bytes of payloads that passed between the coordinator and its sites, step by step
