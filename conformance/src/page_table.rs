//! Reads a GPU's page table: from the simulation, or from a file that the emulated driver provides.

use hsa_vmm::Runtime;
use hsa_vmm::simulation::Simulation;
use std::fmt;

/// A page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageTableEntry {
    /// The offset into the memory.
    pub offset: u64,
    pub readable: bool,
    pub writable: bool,
}

impl fmt::Display for PageTableEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match (self.readable, self.writable) {
            (false, false) => "no access",
            (true, false) => "read",
            (false, true) => "write",
            (true, true) => "read and write",
        };
        write!(f, "{access}, offset {:#x}", self.offset)
    }
}

#[derive(Debug)]
pub(crate) enum PageTable<'a> {
    /// The simulation and the GPU's index.
    Simulated(&'a Simulation, usize),
    /// The ranges in the file: start, size, and the entry of the first byte.
    Listed(Vec<(u64, u64, PageTableEntry)>),
}

impl<'a> PageTable<'a> {
    /// Reads the page table of the GPU with this index. Returns `None` if the page table cannot be read.
    pub fn read(runtime: &'a Runtime, gpu: usize) -> Option<Self> {
        if let Some(simulation) = runtime.simulation() {
            return Some(Self::Simulated(simulation, gpu));
        }
        const FIRST_RENDER_NODE: usize = 128;
        let path = format!("/sys/kernel/debug/dri/{}/amdgpu_vm_info", FIRST_RENDER_NODE + gpu);
        let text = std::fs::read_to_string(path).ok()?;
        // AMD's kernel driver writes this file in another format, which does not show permissions. Ignore such a file.
        text.starts_with(&format!("gpu {gpu} id ")).then(|| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let after = |name| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
            let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
            let permissions = words.last()?;
            let (readable, writable) = (permissions.starts_with('r'), permissions.contains('w'));
            let entry = PageTableEntry { offset: number(after("offset")?)?, readable, writable };
            Some((number(words.first()?)?, number(after("size")?)?, entry))
        };
        Self::Listed(text.lines().filter(|line| line.starts_with("  ")).filter_map(entry).collect())
    }

    /// Returns the entry of an address; `None` if the address is not mapped.
    pub fn entry(&self, address: usize) -> Option<PageTableEntry> {
        match self {
            Self::Simulated(simulation, gpu) => {
                let page = simulation.page(*gpu, address)?;
                let (readable, writable) = (page.readable, page.writable);
                Some(PageTableEntry { offset: page.offset, readable, writable })
            }
            Self::Listed(entries) => {
                let address = address as u64;
                let contains = |(start, size, _): &&(u64, u64, PageTableEntry)| {
                    (*start..start + size).contains(&address)
                };
                let (start, _, entry) = entries.iter().find(contains)?;
                Some(PageTableEntry { offset: entry.offset + (address - start), ..*entry })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumped_page_table_can_be_read() {
        let text = "gpu 0 id 4097 file 0: 2 mappings\n  \
            0x00007fca90960000 size 0x8000 buffer 576949a8c806c402 of gpu 0 offset 0x1000 rwx\n  \
            0x00007fca91893000 size 0x1000 memory of the process offset 0x7fca91893000 r--\n\
            buffers 1, descriptors 2\n";
        let table = PageTable::parse(text);
        let entry = |offset, writable| Some(PageTableEntry { offset, readable: true, writable });
        assert_eq!(table.entry(0x7fca_9096_0000), entry(0x1000, true));
        assert_eq!(table.entry(0x7fca_9096_7fff), entry(0x8fff, true));
        assert_eq!(table.entry(0x7fca_9096_8000), None);
        assert_eq!(table.entry(0x7fca_9189_3000), entry(0x7fca_9189_3000, false));
    }
}
