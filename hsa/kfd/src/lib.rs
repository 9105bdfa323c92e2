//! amdkfd and amdgpu in user space: a shared object to preload, over which AMD's unmodified
//! `libhsa-runtime64` runs on a machine that has no GPU.
//!
//! The functions of libc that libhsakmt and libdrm reach the kernel through are interposed
//! (`interpose`). A path of the driver leads either to an emulated device or to a file of a
//! topology written to a temporary folder (`sysfs`); an `ioctl` on a device is answered by `kfd`
//! or `drm` with the error codes the kernel gives; buffer objects are memory files (`buffer`), so
//! that aliases, processor mappings and dma-bufs are real.
//!
//! No GPU code runs. Queues are accepted and their packets consumed (`queue`): barriers, signals
//! and the copies of the DMA engines happen, a kernel dispatch completes without running.
//!
//! # Environment
//!
//! * `HSA_KFD`: what the machine has, as `gpus=2,profile=mi300x,vram=64GiB`.
//! * `HSA_KFD_LOG`: a file that gets one line for each `ioctl`, with its arguments and its result.
//! * `HSA_KFD_FAULTS`: calls that are to go wrong, as `GEM_VA#3=ENOMEM,COPY=garbled`.
//! * `HSA_FAULTS_RECORD`: an existing file that gets a line for each rule of these that has had an effect.
//! * `HSA_KFD_PAGE_TABLES`: a file that gets the GPUs' page tables when the process ends.
//!
//! What is not understood there ends the process when it first names one of the driver's paths.

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
mod interpose;
mod kfd;
mod log;
mod memory_file;
mod metadata;
mod own;
mod page_table;
mod paths;
mod profile;
mod queue;
mod real;
mod request;
mod slots;
mod sysfs;
mod user;
mod vm_info;
mod vram;
