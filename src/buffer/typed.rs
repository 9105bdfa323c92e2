//! A vector of values in device memory.

use super::GrowableBuffer;
use crate::error::{Errno, Error, ErrorKind, Operation};
use bytemuck::Pod;
use derive_more::Debug;
use std::marker::PhantomData;

/// A vector of values in a [`GrowableBuffer`]. Growing never moves the values.
///
/// The type of the values is [`Pod`]: it has no padding, and any bytes are a valid value. This is required because
/// agents may write any bytes. No method returns a reference into device memory. Each call looks up the mapping and
/// copies, so one call for many values is faster than many calls. Concurrent accesses are described in the [memory
/// model](crate::vmm#memory-model).
///
/// ```
/// # use hsa_vmm::buffer::GrowableVec;
/// # use hsa_vmm::{Access, AllocationProperties, GrowableBuffer, Runtime, Vmm};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(2))?;
/// # let vmm = Vmm::open(&runtime)?;
/// # let gpu = runtime.gpus().next().ok_or("no GPU")?.id();
/// let mut buffer = GrowableBuffer::builder(1 << 30).reserve(&vmm, &AllocationProperties::on(gpu))?;
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
#[debug(bound(T: Pod))]
#[debug("GrowableVec({} values at {})", self.len(), self.buffer.address())]
#[non_exhaustive]
pub struct GrowableVec<T> {
    /// The buffer, for example to grant access. Resizing the buffer resizes the vector.
    pub buffer: GrowableBuffer,
    marker: PhantomData<fn() -> T>,
}

impl<T: Pod> GrowableVec<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0, "the type has a size of zero");
        size_of::<T>()
    };

    /// Creates a vector of the values in a buffer. Ignores an incomplete value at the buffer's end.
    #[must_use]
    pub fn new(buffer: GrowableBuffer) -> Self {
        Self { buffer, marker: PhantomData }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.buffer.size() / Self::SIZE
    }

    /// Returns whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a value.
    ///
    /// # Errors
    /// As for [`extend`](Self::extend).
    pub fn push(&mut self, value: T) -> Result<(), Error> {
        self.extend(&[value])
    }

    /// Appends values: all of them, or none.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::grow`] and [`DeviceBuffer::write`](super::DeviceBuffer::write).
    pub fn extend(&mut self, values: &[T]) -> Result<(), Error> {
        let (old_size, index) = (self.buffer.size(), self.len());
        let size = index.saturating_add(values.len()).saturating_mul(Self::SIZE);
        self.buffer.resize(size.max(old_size))?;
        self.write(index, values).inspect_err(|_| {
            if let Err(error) = self.buffer.resize(old_size) {
                crate::log::event!(WARN, %error, "a buffer could not be shrunk after a failed write");
                self.buffer.forget_end(old_size);
            }
        })
    }

    /// Removes the last value and returns it; `None` if the vector is empty.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::read`](super::DeviceBuffer::read) and [`GrowableBuffer::shrink`].
    pub fn pop(&mut self) -> Result<Option<T>, Error> {
        let Some(last) = self.len().checked_sub(1) else { return Ok(None) };
        let value = self.get(last)?;
        self.truncate(last)?;
        Ok(Some(value))
    }

    /// Keeps the first `len` values, and removes all others.
    ///
    /// # Errors
    /// As for [`GrowableBuffer::shrink`].
    pub fn truncate(&mut self, len: usize) -> Result<(), Error> {
        if len < self.len() { self.buffer.resize(len * Self::SIZE) } else { Ok(()) }
    }

    /// Returns a copy of a value.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn get(&self, index: usize) -> Result<T, Error> {
        let mut value = [T::zeroed()];
        self.read(index, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    /// Replaces a value.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn set(&self, index: usize, value: T) -> Result<(), Error> {
        self.write(index, &[value])
    }

    /// Copies the vector's values from `index` on to `values`.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::read`](super::DeviceBuffer::read), with offsets in bytes.
    pub fn read(&self, index: usize, values: &mut [T]) -> Result<(), Error> {
        self.buffer.read(index.saturating_mul(Self::SIZE), bytemuck::cast_slice_mut(values))
    }

    /// Replaces the vector's values from `index` on by `values`.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::write`](super::DeviceBuffer::write), with offsets in bytes.
    pub fn write(&self, index: usize, values: &[T]) -> Result<(), Error> {
        self.buffer.write(index.saturating_mul(Self::SIZE), bytemuck::cast_slice(values))
    }

    /// Returns a copy of all values.
    ///
    /// # Errors
    /// As for [`DeviceBuffer::read`](super::DeviceBuffer::read); [`ErrorKind::System`] if this process has no memory for
    /// the values.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut values = Vec::new();
        values.try_reserve_exact(self.len()).map_err(|_| {
            let kind = ErrorKind::of_system("malloc", Errno::NOMEM);
            Error::new(Operation::Read, kind)
        })?;
        values.resize(self.len(), T::zeroed());
        self.read(0, &mut values)?;
        Ok(values)
    }
}
