"""Judge and policy replicas on Ray Serve."""

import os

# Ray reads these variables when it is imported. The user's own values take precedence.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# On a small machine the memory monitor would also kill Serve's controller.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
# The engine of a killed replica must end too: it would keep the GPU's memory.
os.environ.setdefault("RAY_process_group_cleanup_enabled", "1")
# Ray's SIGTERM handler aborts a process after three seconds, in the middle of its clean-up.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# A call after Ray has stopped would start another Ray, open to the network.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
