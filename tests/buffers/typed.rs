//! Growable vectors of values.

use crate::errors::{out_of_bounds, size_error};
use crate::machine::{KIB, MIB, Machine, generations};
use crate::process::rerun_in_own_process;
use bytemuck::{Pod, Zeroable};
use hsa_vmm::Error;
use hsa_vmm::buffer::GrowableVec;
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::simulation::Config;
use hsa_vmm::{Access, ErrorKind, GrowableBuffer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Twelve bytes. The buffer's step of 4 KiB is not a multiple of twelve, so some values lie in two steps.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Point {
    x: f32,
    y: f32,
    number: u32,
}

fn point(number: u32) -> Point {
    Point { x: number as f32 * 0.5, y: -(number as f32), number }
}

fn new_vec<T: Pod>(machine: &Machine, maximum: usize) -> GrowableVec<T> {
    let options = GrowableBuffer::builder(maximum).with_step(4 * KIB);
    let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
    GrowableVec::new(buffer)
}

/// If the new step cannot be unmapped after a failed write, the vector has its old length nevertheless.
#[test]
fn failed_extend_appends_nothing() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let options = GrowableBuffer::builder(64 * KIB).with_step(4 * KIB);
        let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
        let mut points = GrowableVec::<Point>::new(buffer);
        machine.simulation.set_faults("hsa_amd_vmem_unmap#1=0x1000".parse().unwrap());
        points.push(point(1)).expect_err("the CPU has no access");
        assert_eq!((points.len(), points.buffer.mapped_size()), (0, 4 * KIB), "{generation}");
        points.buffer.grant(&[machine.cpu(0)], Access::ReadWrite).unwrap();
        points.extend(&[point(2), point(3)]).unwrap();
        assert_eq!(points.to_vec().unwrap(), [point(2), point(3)], "{generation}");
        points.truncate(0).unwrap();
        assert_eq!(points.buffer.mapped_size(), 0, "{generation}");
    }
}

#[test]
fn values_are_pushed_changed_and_popped() {
    for (generation, config) in generations() {
        let machine = Machine::new(config);
        let mut points = new_vec::<Point>(&machine, 64 * KIB);
        assert!(points.is_empty() && points.pop() == Ok(None), "{generation}");
        let address = points.buffer.address();
        let expected: Vec<Point> = (0..1000).map(point).collect();
        for &value in &expected[..500] {
            points.push(value).unwrap();
        }
        points.extend(&expected[500..]).unwrap();
        assert_eq!((points.len(), points.buffer.address()), (1000, address), "{generation}");
        assert_eq!(points.to_vec().unwrap(), expected, "{generation}");
        points.set(341, point(7)).unwrap();
        assert_eq!(
            points.get(341),
            Ok(point(7)),
            "{generation}: the value crosses the end of a step"
        );
        let mut middle = [point(0); 3];
        points.read(340, &mut middle).unwrap();
        assert_eq!(middle, [point(340), point(7), point(342)], "{generation}");
        assert_eq!(points.pop(), Ok(Some(point(999))), "{generation}");
        points.truncate(10).unwrap();
        points.truncate(10_000).unwrap();
        assert_eq!(points.to_vec().unwrap(), expected[..10], "{generation}");
        let buffer = points.buffer;
        assert_eq!((buffer.size(), buffer.mapped_size()), (120, 4 * KIB), "{generation}");
    }
}

#[test]
fn indices_out_of_bounds_are_rejected() {
    let machine = Machine::new(Config::mi300x(1));
    let mut words = new_vec::<u64>(&machine, 4 * KIB);
    words.extend(&[1, 2, 3]).unwrap();
    let end = 3 * size_of::<u64>();
    for (index, offset) in [(3, 24), (4, 32), (usize::MAX, usize::MAX)] {
        let expected_error = out_of_bounds(offset, 8, end);
        assert_eq!(words.get(index).map_err(Error::into_kind), Err(expected_error.clone()));
        assert_eq!(words.set(index, 0).map_err(Error::into_kind), Err(expected_error));
    }
    assert!(words.read(2, &mut [0; 2]).is_err());
    let (size, maximum) = (4 * KIB + 8, 4 * KIB);
    let too_many = words.extend(&[0; 510]);
    let expected = size_error(size, Problem::TooLarge { maximum, whole: Argument::Reservation });
    assert_eq!(too_many.map_err(Error::into_kind), Err(expected));
    assert_eq!(words.to_vec().unwrap(), [1, 2, 3]);
    words.extend(&[9; 509]).unwrap();
    assert_eq!(words.len(), 512);
}

#[test]
fn extending_by_nothing_changes_nothing() {
    let machine = Machine::new(Config::mi300x(1));
    let mut points = new_vec::<Point>(&machine, 4 * KIB);
    points.buffer.grow(30).unwrap();
    points.extend(&[]).unwrap();
    assert_eq!((points.len(), points.buffer.size()), (2, 30), "two values and a half");
    points.push(point(7)).unwrap();
    assert_eq!((points.len(), points.buffer.size()), (3, 36));
}

#[test]
fn failed_writes_add_no_values() {
    let machine = Machine::new(Config::mi300x(1));
    let mut words = new_vec::<u32>(&machine, 16 * KIB);
    words.extend(&[5; 1024]).unwrap();
    words.buffer.grant(&[machine.cpu(0)], Access::Read).unwrap();
    words.push(6).expect_err("the CPU has read access only");
    assert_eq!((words.len(), words.buffer.mapped_size()), (1024, 4 * KIB));
    assert_eq!(words.to_vec().unwrap(), [5; 1024]);
}

/// A GPU can have more memory than this process.
#[test]
fn to_vec_without_memory_is_an_error() {
    if rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let buffer = GrowableBuffer::builder(1024 * MIB).with_step(512 * MIB);
    let mut buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
    buffer.grow(1024 * MIB).unwrap();
    let values = GrowableVec::<u64>::new(buffer);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = (pages * 4 * KIB + 64 * MIB) as u64;
    let limits = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(limit), ..limits }).unwrap();
    let error = values.to_vec().unwrap_err();
    setrlimit(Resource::As, limits).unwrap();
    assert!(matches!(error.kind(), ErrorKind::System { call: "malloc", .. }), "{error}");
}
