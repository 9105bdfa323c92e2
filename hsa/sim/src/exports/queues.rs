//! The functions of queues.

use super::call;
use crate::queue::{self, ErrorCallback, Queue, Request};
use crate::status::non_null;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use hsa_sys::*;

macro_rules! indices {
    (
        load { $($load:ident: $loaded:ident;)* }
        store { $($store:ident: $stored:ident;)* }
        add { $($add:ident)* }
        compare_and_swap { $($cas:ident)* }
    ) => {
        $(
            /// Reads an index of a queue.
            ///
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $load(queue: *const hsa_queue_t) -> u64 {
                // SAFETY: the caller promises null or a live queue.
                unsafe { Queue::of(queue) }.map_or(0, |queue| queue.$loaded.load(Acquire))
            }
        )*
        $(
            /// Sets an index of a queue.
            ///
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $store(queue: *const hsa_queue_t, value: u64) {
                // SAFETY: the caller promises null or a live queue.
                if let Some(queue) = unsafe { Queue::of(queue) } {
                    queue.$stored.store(value, Release);
                }
            }
        )*
        $(
            /// Adds to the write index of a queue, and returns the previous index.
            ///
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $add(queue: *const hsa_queue_t, value: u64) -> u64 {
                // SAFETY: the caller promises null or a live queue.
                let queue = unsafe { Queue::of(queue) };
                queue.map_or(0, |queue| queue.write_index.fetch_add(value, AcqRel))
            }
        )*
        $(
            /// Sets the write index of a queue if it has the expected value, and returns the
            /// previous index.
            ///
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $cas(
                queue: *const hsa_queue_t,
                expected: u64,
                value: u64,
            ) -> u64 {
                // SAFETY: the caller promises null or a live queue.
                let Some(queue) = (unsafe { Queue::of(queue) }) else { return 0 };
                let exchanged = queue.write_index.compare_exchange(expected, value, AcqRel, Acquire);
                let (Ok(previous) | Err(previous)) = exchanged;
                previous
            }
        )*
    };
}
indices! {
    load {
        hsa_queue_load_read_index_acquire: read_index;
        hsa_queue_load_read_index_relaxed: read_index;
        hsa_queue_load_read_index_scacquire: read_index;
        hsa_queue_load_write_index_acquire: write_index;
        hsa_queue_load_write_index_relaxed: write_index;
        hsa_queue_load_write_index_scacquire: write_index;
    }
    store {
        hsa_queue_store_read_index_relaxed: read_index;
        hsa_queue_store_read_index_release: read_index;
        hsa_queue_store_read_index_screlease: read_index;
        hsa_queue_store_write_index_relaxed: write_index;
        hsa_queue_store_write_index_release: write_index;
        hsa_queue_store_write_index_screlease: write_index;
    }
    add {
        hsa_queue_add_write_index_acq_rel hsa_queue_add_write_index_acquire
        hsa_queue_add_write_index_relaxed hsa_queue_add_write_index_release
        hsa_queue_add_write_index_scacq_screl hsa_queue_add_write_index_scacquire
        hsa_queue_add_write_index_screlease
    }
    compare_and_swap {
        hsa_queue_cas_write_index_acq_rel hsa_queue_cas_write_index_acquire
        hsa_queue_cas_write_index_relaxed hsa_queue_cas_write_index_release
        hsa_queue_cas_write_index_scacq_screl hsa_queue_cas_write_index_scacquire
        hsa_queue_cas_write_index_screlease
    }
}

super::exports! {
    hsa_queue_create(
        agent: hsa_agent_t,
        size: u32,
        queue_type: u32,
        callback: ErrorCallback,
        data: *mut c_void,
        _private_segment: u32,
        _group_segment: u32,
        queue: *mut *mut hsa_queue_t,
    ) => |instance| {
        let queue = non_null(queue)?;
        let created = queue::create(instance, Request { agent, size, queue_type, callback, data })?;
        // SAFETY: not null, and writable as HSA documents the function.
        unsafe { queue.write(created) };
        Ok(())
    };

    hsa_queue_destroy(queue: *mut hsa_queue_t) => |instance| queue::destroy(instance, queue);

    hsa_queue_inactivate(queue: *mut hsa_queue_t) => |instance| queue::inactivate(instance, queue);

    // The priorities are low, normal and high. They have no effect in the simulation.
    hsa_amd_queue_set_priority(queue: *mut hsa_queue_t, priority: u32) => |instance| {
        instance.queues.get(queue)?;
        if priority > 2 { Err(HSA_STATUS_ERROR_INVALID_ARGUMENT) } else { Ok(()) }
    };

    hsa_amd_queue_get_info(
        queue: *mut hsa_queue_t,
        attribute: hsa_queue_info_attribute_t,
        value: *mut c_void,
    ) => |instance| {
        let queue = instance.queues.get(queue)?;
        let value = non_null(value)?.cast::<u64>();
        let found = match attribute {
            HSA_AMD_QUEUE_INFO_AGENT => queue.agent.handle,
            HSA_AMD_QUEUE_INFO_DOORBELL_ID => queue.doorbell_id(),
            _ => return Err(HSA_STATUS_ERROR_INVALID_ARGUMENT),
        };
        // SAFETY: not null, and the caller has room for an agent or a 64-bit number.
        unsafe { value.write_unaligned(found) };
        Ok(())
    };
}
