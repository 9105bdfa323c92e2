//! Invalid calls fail, and never crash the caller.

mod fixture;
mod kernel;

use fixture::run_preloaded;
use kernel::calls::{self, Call};
use kernel::{Gpu, READ_WRITE_EXECUTE};

/// A deterministic random generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a random word for an argument. Most of these words are nearly valid.
    fn word(&mut self, memory: u64, descriptors: &[i32]) -> u64 {
        let descriptor = descriptors[self.below(descriptors.len() as u64) as usize] as u64;
        let (low, high) = (self.below(4), self.below(6));
        match self.below(12) {
            0 => 0,
            1 => memory + self.below(4096),
            2 => self.next(),
            3 => self.next() & 0xffff_ffff,
            4 => Gpu::ID | self.below(1 << 20) << 32,
            5 => low | high << 32,
            6 => Gpu::ID << 32 | low,
            7 => descriptor | Gpu::ID << 32,
            8 => 4096 << self.below(12),
            9 => u64::MAX - self.below(8192),
            10 => memory & !4095,
            _ => Gpu::ID | descriptor << 32,
        }
    }
}

#[test]
fn random_calls_return() {
    run_preloaded("random_calls_return", &[("HSA_KFD", "gpus=2,vram=1GiB")], || {
        let gpu = Gpu::open();
        // A call can write to the addresses in its argument. The valid addresses belong to memory that nothing else
        // uses.
        let (handle, offset) = gpu.alloc(1 << 16, kernel::VRAM | kernel::PUBLIC).unwrap();
        let memory = kernel::mmap(gpu.drm, offset, 1 << 16).unwrap() as u64;
        let descriptors = [gpu.kfd, gpu.drm, 0, -1, 1000, gpu.export(handle).unwrap()];
        let mut random = Random(0x5eed);
        let (mut failed, mut succeeded) = (0, 0);
        for _ in 0..200_000 {
            let render = random.below(2) == 0;
            let (device, family) = if render { (gpu.drm, b'd') } else { (gpu.kfd, b'K') };
            // Most of the driver's calls have numbers below `end`.
            let end = if render { 0x60 } else { 0x30 };
            let number = if random.below(8) == 0 { random.below(256) } else { random.below(end) };
            // Skip all waits for events: a random timeout may be unlimited.
            if !render && number == u64::from(calls::WAIT_EVENTS.1) {
                continue;
            }
            let mut argument = [0u64; 16];
            argument.iter_mut().for_each(|word| *word = random.word(memory, &descriptors));
            let size =
                if random.below(4) == 0 { random.below(1 << 14) } else { 8 * random.below(16) };
            let code =
                random.below(4) << 30 | size.min(128) << 16 | u64::from(family) << 8 | number;
            // SAFETY: the buffer is at least as long as the size in `code`, or its address is
            // invalid. Each valid address in the buffer belongs to memory that nothing else uses.
            let result = unsafe {
                match random.below(16) {
                    0 => libc::ioctl(device, code, random.next() & 0xfff),
                    _ => libc::ioctl(device, code, argument.as_mut_ptr()),
                }
            };
            if result == 0 {
                succeeded += 1
            } else {
                failed += 1
            }
            if random.below(8) == 0 {
                let (offset, length) =
                    (random.word(memory, &descriptors) & !4095, random.below(1 << 20));
                if let Ok(mapped) = kernel::mmap(device, offset, length as usize) {
                    // SAFETY: the test has just mapped the memory.
                    unsafe { libc::munmap(mapped.cast(), length as usize) };
                }
            }
        }
        eprintln!(
            "{failed} failed, {succeeded} succeeded, {} threads",
            std::fs::read_dir("/proc/self/task").unwrap().count()
        );
        assert!(failed > 10_000 && succeeded > 1000, "{failed} failed, {succeeded} succeeded");
        // The driver still works.
        let (handle, _) = gpu.alloc(4096, kernel::GTT).unwrap();
        gpu.free(handle).unwrap();
    });
}

/// Returns a random valid call on the process's objects, and its arguments.
fn valid_call(gpu: Gpu, random: &mut Random, memory: u64, dmabuf: i32) -> (Call, Vec<u64>) {
    let number = 1 + random.below(3);
    let (handle, address) = (gpu.id << 32 | number, 0x1000_0000 + (random.below(64) << 12));
    let (dmabuf, size) = (dmabuf as u64, 4096 * number);
    let flags =
        [kernel::VRAM, kernel::GTT, kernel::VRAM | kernel::PUBLIC][random.below(3) as usize];
    // Ring, write pointer, read pointer, doorbell, size and GPU, type (AQL) and percentage, priority.
    let queue = [memory, memory + 8192, memory + 8200, 0, 4096 | gpu.id << 32, 2 | 100 << 32, 7];
    match random.below(16) {
        0 => (
            calls::ALLOC_MEMORY_OF_GPU,
            vec![address, size, 0, 0, gpu.id | (flags | kernel::WRITABLE) << 32],
        ),
        1 => (calls::FREE_MEMORY_OF_GPU, vec![handle]),
        2 => (calls::MAP_MEMORY_TO_GPU, vec![handle, memory + 4096, 1]),
        3 => (calls::UNMAP_MEMORY_FROM_GPU, vec![handle, memory + 4096, 1]),
        4 => (calls::EXPORT_DMABUF, vec![handle, libc::O_CLOEXEC as u64]),
        5 => (calls::IMPORT_DMABUF, vec![address, 0, gpu.id | dmabuf << 32]),
        6 => (calls::GET_DMABUF_INFO, vec![0, 0, 0, dmabuf << 32]),
        // Each queue creates a thread, so create only a few.
        7 if random.below(64) == 0 => (calls::CREATE_QUEUE, [&queue[..], &[0; 5]].concat()),
        7 => (calls::AVAILABLE_MEMORY, vec![0, gpu.id]),
        8 => (calls::DESTROY_QUEUE, vec![number]),
        9 => (calls::CREATE_EVENT, vec![0, 0, 0, 0]),
        10 => (calls::GET_PROCESS_APERTURES_NEW, vec![memory, 2]),
        11 => (calls::PRIME_FD_TO_HANDLE, vec![0, dmabuf]),
        12 => (
            calls::GEM_VA,
            vec![number, (1 + random.below(4)) | (READ_WRITE_EXECUTE << 32), address, 0, size],
        ),
        // The query for the properties of the GPU.
        13 => (calls::INFO, vec![memory, 360 | 0x16 << 32, 0, 0]),
        14 => (calls::GEM_MMAP, vec![number]),
        _ => (calls::GEM_CLOSE, vec![number]),
    }
}

/// Makes calls with at most one invalid word, which pass most of the driver's checks.
#[test]
fn nearly_valid_calls_return() {
    let name = "nearly_valid_calls_return";
    run_preloaded(name, &[("HSA_KFD", "vram=1GiB")], || {
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(1 << 16, kernel::GTT).unwrap();
        let memory = kernel::mmap(gpu.drm, offset, 1 << 16).unwrap();
        // SAFETY: the test has just mapped the memory.
        unsafe { memory.add(4096).cast::<u32>().write(Gpu::ID as u32) };
        let (memory, dmabuf) = (memory as u64, gpu.export(handle).unwrap());
        let mut random = Random(0xfeed);
        let (mut failed, mut succeeded) = (0, 0);
        for _ in 0..30_000 {
            let (call, mut argument) = valid_call(gpu, &mut random, memory, dmabuf);
            if random.below(2) == 0 {
                let index = random.below(argument.len() as u64) as usize;
                argument[index] = random.word(memory, &[gpu.kfd, gpu.drm, dmabuf]);
            }
            let (family, number) = call;
            let device = if family == b'd' { gpu.drm } else { gpu.kfd };
            let size = (argument.len() * 8) as u64;
            let code = 3 << 30 | size << 16 | u64::from(family) << 8 | u64::from(number);
            // SAFETY: `code` contains the length of the buffer. Each valid address in the buffer
            // belongs to memory that nothing else uses.
            let result = unsafe { libc::ioctl(device, code, argument.as_mut_ptr()) };
            if result == 0 {
                succeeded += 1
            } else {
                failed += 1
            }
            if (call, result) == (calls::EXPORT_DMABUF, 0) {
                kernel::close((argument[1] >> 32) as i32).unwrap();
            }
        }
        assert!(failed > 3000 && succeeded > 3000, "{failed} failed, {succeeded} succeeded");
        // All memory can be freed, and none remains.
        kernel::close(dmabuf).unwrap();
        for handle in (1..30_000).map(|number| gpu.id << 32 | number) {
            let _ = gpu.unmap_memory(handle);
            let _ = gpu.free(handle);
        }
        for handle in 1..100 {
            let _ = gpu.gem_close(handle);
        }
        assert_eq!(kernel::page_tables().0, [] as [String; 0]);
        assert!(kernel::page_tables().1.starts_with("buffers 0, "), "{:?}", kernel::page_tables());
        assert_eq!(gpu.available(), 1 << 30);
    });
}

/// A queue continues after its byte count wraps around to 0.
#[test]
fn queue_survives_counter_overflow() {
    run_preloaded("queue_survives_counter_overflow", &[], || {
        let gpu = Gpu::open();
        let (_, offset) = gpu.alloc(1 << 16, kernel::GTT).unwrap();
        let memory = kernel::mmap(gpu.drm, offset, 1 << 16).unwrap();
        let [written, read] = [8192, 8200].map(|at| memory.wrapping_add(at).cast::<u64>());
        // SAFETY: the test has just mapped the memory; the ring before the two pointers is all
        // zeros, which encode no-ops.
        unsafe {
            read.write_volatile(u64::MAX - 2);
            written.write_volatile(u64::MAX);
        }
        let (ring, sdma) = (memory as u64, 1);
        let addresses = [ring, written as u64, read as u64, 0];
        let rest = [4096 | gpu.id << 32, sdma | 100 << 32, 7, 0, 0, 0, 0, 0];
        let mut queue: Vec<u64> = addresses.into_iter().chain(rest).collect();
        let queue: &mut [u64; 12] = queue.as_mut_slice().try_into().unwrap();
        kernel::call(gpu.kfd, calls::CREATE_QUEUE, queue).unwrap();
        let began = std::time::Instant::now();
        // SAFETY: the test has just mapped the memory.
        while unsafe { read.read_volatile() } > u64::MAX / 2 {
            assert!(began.elapsed().as_secs() < 20, "the queue must continue");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut destroy = [queue[6] >> 32];
        kernel::call(gpu.kfd, calls::DESTROY_QUEUE, &mut destroy).unwrap();
    });
}

#[test]
fn invalid_waits_return() {
    run_preloaded("invalid_waits_return", &[], || {
        let gpu = Gpu::open();
        let wait = |events: u64, count: u64, all: u64| {
            // The timeout is a millisecond.
            kernel::call(gpu.kfd, calls::WAIT_EVENTS, &mut [events, count | all << 32, 1])
        };
        assert_eq!(wait(0, 1, 0), Err(libc::EFAULT));
        assert_eq!(wait(8, 3, 1), Err(libc::EFAULT));
        assert_eq!(wait(0, u64::from(u32::MAX), 0), Err(libc::ENOMEM));
        assert_eq!(wait(0, 0, 0), Ok(()), "no event to wait for");
        let events = [[0u64, 0, 0, 0, 0, 77]];
        assert_eq!(
            wait(events.as_ptr() as u64, 1, 0),
            Err(libc::EINVAL),
            "the event does not exist"
        );
    });
}
