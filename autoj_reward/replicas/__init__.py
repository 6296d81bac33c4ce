"""Judge and policy replicas on Ray Serve."""

import os

# Read when Ray is imported; a user's own setting wins.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# On a small machine the memory monitor would also kill Serve's controller.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# A replica that is killed must not leave its engine behind: it would hold on to the GPU's memory.
os.environ.setdefault("RAY_process_group_cleanup_enabled", "1")
# Its own handler of SIGTERM aborts a process three seconds later, in the midst of its clean-up.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# A call that comes after the end of a Ray would start another one, open to the network.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
