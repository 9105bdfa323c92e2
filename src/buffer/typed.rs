//! Values of one type in device memory that grows.

use super::{BufferError, GrowableBuffer};
use crate::vmm::Address;
use bytemuck::Pod;
use std::marker::PhantomData;

/// Values one after another in a [`GrowableBuffer`], as in a vector, except that they never move.
///
/// [`Pod`] types only: any bytes are a value of them, because agents may write any, and they have
/// no padding that could be copied out. A reference into device memory is never handed out; each
/// access copies, and costs a look into the library's books, so that many values are better read
/// and written at once.
///
/// ```
/// # use hsa_vmm::{Access, AllocationProperties, GrowableBuffer, GrowableVec, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let mut buffer = GrowableBuffer::of(1 << 30).reserve(&vmm, &AllocationProperties::on(gpu))?;
/// buffer.grant(&[gpu, runtime.host().id()], Access::ReadWrite)?;
/// let mut values = GrowableVec::<f32>::new(buffer);
/// values.extend(&[1.0, 2.0, 3.0])?;
/// values.set(1, 0.5)?;
/// assert_eq!(values.pop()?, Some(3.0));
/// assert_eq!(values.to_vec()?, [1.0, 0.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GrowableVec<T> {
    buffer: GrowableBuffer,
    of: PhantomData<fn() -> T>,
}

impl<T: Pod> GrowableVec<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0, "a value must have a size to be somewhere");
        size_of::<T>()
    };

    /// The values that are in a buffer, as many as are there whole.
    #[must_use]
    pub fn new(buffer: GrowableBuffer) -> Self {
        Self { buffer, of: PhantomData }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.size() / Self::SIZE
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the first is, for good.
    #[must_use]
    pub fn address(&self) -> Address {
        self.buffer.address()
    }

    /// The buffer they are in.
    #[must_use]
    pub fn buffer(&self) -> &GrowableBuffer {
        &self.buffer
    }

    /// The buffer they are in, to grant access for example. Its size is theirs.
    #[must_use]
    pub fn buffer_mut(&mut self) -> &mut GrowableBuffer {
        &mut self.buffer
    }

    /// The buffer, and no type any more.
    #[must_use]
    pub fn into_buffer(self) -> GrowableBuffer {
        self.buffer
    }

    /// Adds one at the end.
    ///
    /// # Errors
    /// As for [`extend`](Self::extend).
    pub fn push(&mut self, value: T) -> Result<(), BufferError> {
        self.extend(&[value])
    }

    /// Adds several at the end: all of them, or none.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::grow`] and [`GrowableBuffer::write`].
    pub fn extend(&mut self, values: &[T]) -> Result<(), BufferError> {
        let (before, index) = (self.buffer.size(), self.len());
        let size = index.saturating_add(values.len()).saturating_mul(Self::SIZE);
        self.buffer.resize(size)?;
        self.write(index, values).inspect_err(|_| {
            if let Err(undo) = self.buffer.resize(before) {
                crate::log::warning!(%undo, "a buffer stays larger than what was written to it");
            }
        })
    }

    /// Takes the last one off; `None` if there is none.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::read`] and [`GrowableBuffer::shrink`].
    pub fn pop(&mut self) -> Result<Option<T>, BufferError> {
        let Some(last) = self.len().checked_sub(1) else { return Ok(None) };
        let value = self.get(last)?;
        self.truncate(last)?;
        Ok(Some(value))
    }

    /// Keeps the first so many, or all if there are no more.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::shrink`].
    pub fn truncate(&mut self, len: usize) -> Result<(), BufferError> {
        if len < self.len() { self.buffer.resize(len * Self::SIZE) } else { Ok(()) }
    }

    /// Copies one out.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn get(&self, index: usize) -> Result<T, BufferError> {
        let mut value = [T::zeroed()];
        self.read(index, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    /// Replaces one.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn set(&self, index: usize, value: T) -> Result<(), BufferError> {
        self.write(index, &[value])
    }

    /// Copies several out, from one on.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`GrowableBuffer::read`]; offsets are in bytes there.
    pub fn read(&self, index: usize, values: &mut [T]) -> Result<(), BufferError> {
        self.buffer.read(index.saturating_mul(Self::SIZE), bytemuck::cast_slice_mut(values))
    }

    /// Replaces several, from one on.
    ///
    /// Concurrent accesses are described in the [memory model](crate::vmm#memory-model).
    ///
    /// # Errors
    /// As for [`GrowableBuffer::write`]; offsets are in bytes there.
    pub fn write(&self, index: usize, values: &[T]) -> Result<(), BufferError> {
        self.buffer.write(index.saturating_mul(Self::SIZE), bytemuck::cast_slice(values))
    }

    /// Copies all of them out.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::read`].
    pub fn to_vec(&self) -> Result<Vec<T>, BufferError> {
        let mut values = vec![T::zeroed(); self.len()];
        self.read(0, &mut values)?;
        Ok(values)
    }
}
