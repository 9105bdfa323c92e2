//! Emulates amdkfd and amdgpu in user space. With this shared object preloaded, AMD's unmodified
//! `libhsa-runtime64` runs on a machine without a GPU.
//!
//! `interpose` replaces the libc functions through which libhsakmt and libdrm call the kernel.
//! Opening a driver path opens an emulated device, or a file of the topology that `sysfs` writes to
//! a temporary folder. `kfd` and `drm` execute an `ioctl` on a device and return the kernel's error
//! codes. Buffer objects are memory files (`buffer`), so aliases, CPU mappings and dma-bufs are real.
//!
//! No GPU code runs. `queue` consumes the packets of queues: it performs barriers, signals, DMA copies, and the
//! copy and fill kernels of AMD's runtime. The dispatch of any other kernel completes without running it.
//!
//! # Environment
//!
//! * `HSA_KFD`: the emulated machine, such as `gpus=2,profile=mi300x,vram=64GiB`; `real` emulates nothing: the
//!   machine's own driver performs the calls, which are only logged (`observe`).
//! * `HSA_KFD_LOG`: a file that gets one line for each call on a device, with its arguments and its result.
//! * `HSA_KFD_FAULTS`: a plan of faults in calls, such as `GEM_VA#3=ENOMEM,COPY=garbled`.
//! * `HSA_FAULTS_RECORD`: an existing file that gets a line for each rule of the plan that took effect.
//! * `HSA_KFD_LOADER`: the dynamic loader that programs use instead of the machine's (`loader`).
//! * `HSA_KFD_PAGE_TABLES`: a file that gets the GPUs' page tables when the process exits normally, and when a GPU faults.
//!
//! An invalid `HSA_KFD`, `HSA_KFD_LOG` or `HSA_KFD_FAULTS` ends the process when the process first uses a path of the
//! driver.

mod abi;
mod buffer;
mod config;
mod descriptors;
mod driver;
mod drm;
mod environment;
mod errno;
mod faults;
mod foreign;
mod fork;
mod hardware;
mod id_table;
mod interpose;
mod kfd;
mod loader;
mod log;
mod memory_file;
mod metadata;
mod observe;
mod own_descriptors;
mod page_table;
mod paths;
mod profile;
mod queue;
mod real;
mod request;
mod sysfs;
mod user;
mod vm_info;
mod vram;
