//! Processes send each other memory. Each process loads the runtime itself. These tests can use any runtime.

mod descendants;
mod untrusted;

pub use descendants::{Role, share_with_descendants};
pub use untrusted::{share_with_another_namespace, share_with_another_user};

use crate::machine::Library;
use hsa_vmm::transport::{Channel, Description};
use hsa_vmm::{Access, Allocation, Mapping, Reservation};

const SIZE: usize = 256 << 10;

/// Loads the runtime and opens the library on it, in a process that has loaded no runtime yet.
pub type OpenLibrary<'a> = &'a dyn Fn() -> Library;

/// Memory, and a mapping of it for the CPU and all GPUs of this process.
struct MappedMemory {
    mapping: Mapping,
    memory: Allocation,
}

impl MappedMemory {
    fn create(library: &Library, gpu: usize) -> Self {
        Self::of(
            library,
            Allocation::create(&library.vmm, SIZE, &library.shareable_on(gpu)).unwrap(),
        )
    }

    fn receive(library: &Library, channel: &Channel, name: &str) -> Self {
        let (memory, description) = channel.receive(&library.vmm).unwrap();
        assert_eq!((description.name.as_str(), description.size), (name, SIZE as u64));
        Self::of(library, memory)
    }

    fn of(library: &Library, memory: Allocation) -> Self {
        let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        let agents: Vec<_> = library.runtime.agents().iter().map(|agent| agent.id()).collect();
        mapping.grant(&agents, Access::ReadWrite).unwrap();
        Self { mapping, memory }
    }

    fn send(&self, channel: &Channel, name: &str) {
        channel.send(&self.memory, name).unwrap();
    }

    fn write(&self, offset: usize, text: &str) {
        self.mapping.write(offset, text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn assert_text(&self, offset: usize, text: &str) {
        let mut found = vec![0; text.len()];
        self.mapping.read(offset, &mut found).unwrap();
        assert_eq!(String::from_utf8_lossy(&found), text, "at {offset}");
    }
}

fn send_word(channel: &Channel, word: &str) {
    let description = Description { name: word.to_owned(), size: 1, granule: 1, owner: None };
    channel.send_descriptor(std::io::stderr(), &description).unwrap();
}

/// Receives a word, and fails unless the word is `word`.
#[track_caller]
fn expect_word(channel: &Channel, word: &str) {
    assert_eq!(channel.receive_descriptor().unwrap().1.name, word);
}
