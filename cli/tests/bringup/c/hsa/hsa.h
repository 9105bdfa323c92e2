/* A substitute for AMD's header, which may not be installed. */
#include "hsa_abi.h"

#define DECLARE(name) extern __typeof__(*(name##_fn)0) name
DECLARE(hsa_status_string);
DECLARE(hsa_init);
DECLARE(hsa_shut_down);
DECLARE(hsa_system_get_info);
DECLARE(hsa_iterate_agents);
DECLARE(hsa_agent_get_info);
DECLARE(hsa_signal_create);
DECLARE(hsa_signal_destroy);
DECLARE(hsa_signal_store_screlease);
DECLARE(hsa_signal_wait_scacquire);
