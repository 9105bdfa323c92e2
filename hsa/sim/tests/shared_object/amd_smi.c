/* A stand-in for libamd_smi.so.26, which rocrtst loads to print temperatures and clocks. Every function fails. */
enum { NOT_SUPPORTED = 2 };

#define UNSUPPORTED(name) \
  int name(void) { return NOT_SUPPORTED; }

UNSUPPORTED(amdsmi_get_clk_freq)
UNSUPPORTED(amdsmi_get_gpu_board_info)
UNSUPPORTED(amdsmi_get_gpu_fan_speed)
UNSUPPORTED(amdsmi_get_gpu_fan_speed_max)
UNSUPPORTED(amdsmi_get_gpu_id)
UNSUPPORTED(amdsmi_get_gpu_overdrive_level)
UNSUPPORTED(amdsmi_get_gpu_perf_level)
UNSUPPORTED(amdsmi_get_processor_handles)
UNSUPPORTED(amdsmi_get_processor_type)
UNSUPPORTED(amdsmi_get_socket_handles)
UNSUPPORTED(amdsmi_get_temp_metric)
UNSUPPORTED(amdsmi_init)
UNSUPPORTED(amdsmi_shut_down)
