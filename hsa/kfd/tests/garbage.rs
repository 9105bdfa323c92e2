//! Calls that no sane program makes must fail, and never crash the one that makes them.

mod ground;
mod kernel;

use ground::under;
use kernel::Gpu;

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// A word as an argument may have it: often something that is nearly right.
    fn word(&mut self, memory: u64, descriptors: &[i32]) -> u64 {
        let descriptor = descriptors[self.below(descriptors.len() as u64) as usize] as u64;
        let (low, high) = (self.below(4), self.below(6));
        match self.below(12) {
            0 => 0,
            1 => memory + self.below(4096),
            2 => self.roll(),
            3 => self.roll() & 0xffff_ffff,
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
fn garbage_is_refused() {
    under("garbage_is_refused", &[("HSA_KFD", "gpus=2,vram=1GiB")], || {
        let gpu = Gpu::open();
        // Pages of their own: what a call may write to must not be another's.
        let (handle, offset) = gpu.alloc(1 << 16, kernel::VRAM | kernel::PUBLIC).unwrap();
        let memory = kernel::mmap(gpu.drm, offset, 1 << 16).unwrap() as u64;
        let descriptors = [gpu.kfd, gpu.drm, 0, -1, 1000, gpu.export(handle).unwrap()];
        let mut dice = Dice(0x5eed);
        let (mut refused, mut answered) = (0, 0);
        for _ in 0..200_000 {
            let render = dice.below(2) == 0;
            let (device, family) = if render { (gpu.drm, b'd') } else { (gpu.kfd, b'K') };
            let known = if render { 0x60 } else { 0x30 };
            let number = if dice.below(8) == 0 { dice.below(256) } else { dice.below(known) };
            // A wait without an end is no crash, but this test has one.
            if !render && number == 0x0c {
                continue;
            }
            let mut argument = [0u64; 16];
            argument.iter_mut().for_each(|word| *word = dice.word(memory, &descriptors));
            let size = if dice.below(4) == 0 { dice.below(1 << 14) } else { 8 * dice.below(16) };
            let code = dice.below(4) << 30 | size.min(128) << 16 | u64::from(family) << 8 | number;
            // SAFETY: the argument is as long as the code says, or nowhere at all; what addresses
            // are in it lead to memory that nobody uses, or nowhere.
            let result = unsafe {
                match dice.below(16) {
                    0 => libc::ioctl(device, code, dice.roll() & 0xfff),
                    _ => libc::ioctl(device, code, argument.as_mut_ptr()),
                }
            };
            if result == 0 {
                answered += 1
            } else {
                refused += 1
            }
            if dice.below(8) == 0 {
                let (offset, length) =
                    (dice.word(memory, &descriptors) & !4095, dice.below(1 << 20));
                if let Ok(mapped) = kernel::mmap(device, offset, length as usize) {
                    // SAFETY: mapped just now.
                    unsafe { libc::munmap(mapped.cast(), length as usize) };
                }
            }
        }
        eprintln!("{refused} refused, {answered} answered, {} threads", std::fs::read_dir("/proc/self/task").unwrap().count());
        assert!(refused > 10_000 && answered > 1000, "{refused} refused, {answered} answered");
        // It works all the same.
        let (handle, _) = gpu.alloc(4096, kernel::GTT).unwrap();
        gpu.free(handle).unwrap();
    });
}

#[test]
fn waits_for_garbage_end() {
    under("waits_for_garbage_end", &[], || {
        let gpu = Gpu::open();
        let wait = |events: u64, count: u64, all: u64| {
            // The timeout is a millisecond.
            kernel::call(gpu.kfd, b'K', 0x0c, &mut [events, count | all << 32, 1])
        };
        assert_eq!(wait(0, 1, 0), Err(libc::EFAULT));
        assert_eq!(wait(8, 3, 1), Err(libc::EFAULT));
        assert_eq!(wait(0, u64::from(u32::MAX), 0), Err(libc::ENOMEM));
        assert_eq!(wait(0, 0, 0), Ok(()), "nothing to wait for");
        let events = [[0u64, 0, 0, 0, 0, 77]];
        assert_eq!(wait(events.as_ptr() as u64, 1, 0), Err(libc::EINVAL), "no such event");
    });
}
