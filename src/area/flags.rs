//! The flags of an area, and what is left of them once they have been read together.

use core::fmt;

bitflags::bitflags! {
    /// What kind of memory an area gives, under AML's names and numbers.
    ///
    /// Of the sixteen combinations some mean the same: [`UNIFIED`](Self::UNIFIED) makes
    /// [`HOST`](Self::HOST) and [`MAPPED`](Self::MAPPED) mean nothing, and host memory is always
    /// mapped on the device, as HIP's is on AMD, so that `HOST` means `HOST | MAPPED`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AreaFlags: u32 {
        /// Memory of the host (`AML_AREA_HIP_FLAG_ALLOC_HOST`, `hipHostMalloc`).
        const HOST = 1;
        /// One pointer that host and device use (`AML_AREA_HIP_FLAG_ALLOC_UNIFIED`,
        /// `hipMallocManaged`). `HOST` and `MAPPED` are then ignored.
        ///
        /// It does not migrate. Where it is memory of the device, what a kernel writes is there
        /// for the host when the kernel has ended; what the host stores may have to be flushed
        /// for the device (`HSA_AMD_AGENT_INFO_HDP_FLUSH`), which [`write`](crate::AreaMemory::write)
        /// does without, because there the device copies.
        const UNIFIED = 1 << 1;
        /// Memory of the host, mapped on the device (`AML_AREA_HIP_FLAG_ALLOC_MAPPED`): new
        /// memory with `HOST` (`hipHostMalloc`), without it memory that is there already
        /// (`hipHostRegister`), which each `mmap` is given. AMD's runtimes let every GPU use that
        /// (seen in 6.1.2, 6.4.3 and 7.2.4), whichever is asked for.
        const MAPPED = 1 << 2;
        /// Visible to all devices instead of one (`AML_AREA_HIP_FLAG_ALLOC_GLOBAL`,
        /// `hipMemAttachGlobal`, `hipHostMallocPortable`). Of memory of the device AML ignores
        /// it; here it lets all GPUs in.
        const GLOBAL = 1 << 3;
        const _ = !0;
    }
}

/// Which memory it is, after the interplay of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The device's own.
    Device,
    /// The host's.
    Host,
    /// Whichever both use at one address.
    Unified,
    /// The caller's, which is there already.
    Existing,
}

impl AreaFlags {
    /// Memory of the device, visible to it alone (`AML_AREA_HIP_FLAG_DEFAULT`).
    pub const DEFAULT: Self = Self::empty();

    /// Whether each `mmap` is given memory of the host that is there already.
    #[must_use]
    pub fn maps_existing_memory(self) -> bool {
        self.kind() == Kind::Existing
    }

    /// The bits that mean nothing.
    pub(super) fn unknown(self) -> u32 {
        let known = Self::HOST | Self::UNIFIED | Self::MAPPED | Self::GLOBAL;
        self.bits() & !known.bits()
    }

    pub(super) fn kind(self) -> Kind {
        if self.contains(Self::UNIFIED) {
            Kind::Unified
        } else if self.contains(Self::HOST) {
            Kind::Host
        } else if self.contains(Self::MAPPED) {
            Kind::Existing
        } else {
            Kind::Device
        }
    }
}

impl fmt::Display for AreaFlags {
    /// Short words, as `host, mapped`; `default` if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (Self::HOST, "host"),
            (Self::UNIFIED, "unified"),
            (Self::MAPPED, "mapped"),
            (Self::GLOBAL, "global"),
        ];
        let mut between = "";
        for (_, word) in words.into_iter().filter(|&(flag, _)| self.contains(flag)) {
            write!(f, "{between}{word}")?;
            between = ", ";
        }
        match (between, self.unknown()) {
            ("", 0) => f.write_str("default"),
            (_, 0) => Ok(()),
            (_, unknown) => write!(f, "{between}{unknown:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defect of AML's `fprintf`, which runs off its table of words.
    #[test]
    fn every_combination_has_words() {
        let mut seen = std::collections::HashSet::new();
        for bits in 0..16 {
            let flags = AreaFlags::from_bits_retain(bits);
            let text = flags.to_string();
            let words = text.split(", ").filter(|word| *word != "default").count();
            assert_eq!(words, bits.count_ones() as usize, "{text}");
            assert!(seen.insert(text));
        }
        assert_eq!(AreaFlags::from_bits_retain(0x11).to_string(), "host, 0x10");
        assert_eq!(AreaFlags::from_bits_retain(0x10).to_string(), "0x10");
    }

    #[test]
    fn only_what_is_mapped_and_not_made_is_there_already() {
        for bits in 0..16 {
            let flags = AreaFlags::from_bits_retain(bits);
            let made = flags.intersects(AreaFlags::HOST | AreaFlags::UNIFIED);
            let existing = flags.contains(AreaFlags::MAPPED) && !made;
            assert_eq!(flags.maps_existing_memory(), existing, "{flags}");
            assert_eq!(AreaFlags::from_bits_retain(bits | 0x30).unknown(), 0x30, "{flags}");
        }
    }

    #[test]
    fn the_numbers_are_amls() {
        let numbers = [AreaFlags::HOST, AreaFlags::UNIFIED, AreaFlags::MAPPED, AreaFlags::GLOBAL];
        assert_eq!(numbers.map(|flag| flag.bits()), [1, 2, 4, 8]);
    }
}
