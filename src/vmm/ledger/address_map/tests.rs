//! What it does is what the standard library's map does.

use super::{ALL, AddressMap, Child, FEW, MANY, Node, USUAL};
use std::collections::BTreeMap;

/// Does the same to a map of the standard library's, and compares.
fn compare(steps: impl IntoIterator<Item = (u8, usize)>, unit: usize) {
    let (mut map, mut model) = (AddressMap::new(), BTreeMap::new());
    for (number, (step, key)) in steps.into_iter().enumerate() {
        let key = key.wrapping_mul(unit);
        match step {
            0..5 => {
                map.insert(key, number);
                model.insert(key, number);
            }
            5..8 => assert_eq!(map.remove(key), model.remove(&key)),
            _ => {
                assert_eq!(map.get(key), model.get(&key));
                assert_eq!(map.get_mut(key), model.get_mut(&key));
            }
        }
        assert_eq!(map.check(), Ok(()));
        assert_eq!(map.len(), model.len());
        let (less, more) = (key.saturating_sub(unit), key.saturating_add(unit));
        for near in [key.saturating_sub(1), key, key + 1, less, more, 0, unit / 2, usize::MAX] {
            let expected = model.range(..=near).next_back().map(|(&key, value)| (key, value));
            assert_eq!(map.below(near), expected, "at or below {near:#x}");
        }
        for range in [key / 2..key + 3, less..more, key..key + 1, more..usize::MAX] {
            let expected = model.range(range.clone()).map(|(&key, value)| (key, value));
            assert!(map.range(range).eq(expected));
        }
    }
    assert!(map.iter().eq(model.iter().map(|(&key, value)| (key, value))));
    assert!(map.clone().iter().eq(map.iter()));
}

/// Numbers that are drawn, and the same every time.
fn draws() -> impl FnMut(usize) -> usize {
    let mut state = 7u64;
    move |end| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    }
}

/// Side by side, in pages, in the usual granule, and all over the address space.
const UNITS: [usize; 6] = [1, 4096, 1 << USUAL, 3 << 14, 1 << 40, 0x1234_5678_9ABC_DEF1];

#[test]
fn it_does_what_the_standard_map_does() {
    let mut draw = draws();
    let rounds = if cfg!(miri) { 1 } else { 12 };
    let units = if cfg!(miri) { &UNITS[2..4] } else { &UNITS[..] };
    for &unit in units {
        for _ in 0..rounds {
            let (steps, keys) = (draw(if cfg!(miri) { 60 } else { 600 }), 1 + draw(400));
            let steps: Vec<_> = (0..steps).map(|_| (draw(9) as u8, draw(keys))).collect();
            compare(steps, unit);
        }
    }
}

#[test]
fn it_fills_and_empties_in_any_direction() {
    let most = if cfg!(miri) { 30 } else { 300 };
    for (fill, empty) in [(false, false), (false, true), (true, false), (true, true)] {
        let order = |backwards: bool| {
            (0..most).map(move |key| if backwards { most - 1 - key } else { key })
        };
        let filled = order(fill).map(|key| (0, key));
        compare(filled.chain(order(empty).map(|key| (5, key))), 4096);
    }
}

#[test]
fn addresses_that_differ_in_one_bit_only_are_told_apart() {
    // An interpreter takes long.
    let step = if cfg!(miri) { 9 } else { 1 };
    for bit in (0..usize::BITS).step_by(step) {
        let far = 1usize << bit;
        compare([(0, 0), (0, far), (0, far | 1), (0, far | (far / 2)), (5, far), (5, 0)], 1);
        for other in (0..bit).step_by(step) {
            compare([(0, 1 << other), (0, far), (0, 0), (0, far | 1 << other), (5, far)], 1);
        }
    }
}

/// From the root to an entry.
fn depth<V>(child: &Child<V>) -> usize {
    match child {
        Child::Node(node) => 1 + node.children.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[test]
fn the_way_down_is_no_longer_than_it_need_be() {
    let mut map = AddressMap::new();
    (0..64).for_each(|key| map.insert(key << USUAL, ()));
    assert_eq!(depth(&map.root), 1, "those of the usual granule are side by side");
    (0..65).for_each(|key| map.insert(key << USUAL, ()));
    assert_eq!(depth(&map.root), 2);
    let mut map = AddressMap::new();
    (0..usize::BITS).for_each(|bit| map.insert(1 << bit, ()));
    map.insert(0, ());
    assert_eq!(depth(&map.root), super::DEEPEST);
    assert_eq!(map.iter().count(), 65);
}

fn room<V>(child: &Child<V>) -> usize {
    match child {
        Child::Node(node) => {
            node.children.capacity() + node.children.iter().map(room).sum::<usize>()
        }
        _ => 0,
    }
}

#[test]
fn what_is_taken_away_leaves_no_room_behind() {
    let mut map = AddressMap::new();
    // An interpreter takes long.
    let most = if cfg!(miri) { 2 * ALL } else { ALL * ALL };
    (0..most).for_each(|key| map.insert(key << USUAL, ()));
    assert!(room(&map.root) <= ALL + most);
    // Wherever it stops, no more than about three places are there for each.
    let mut draw = draws();
    while map.len() > 1 {
        let (start, ()) = map.below(draw(most) << USUAL).unwrap_or((0, &()));
        if start != 0 {
            map.remove(start);
        }
        let room = room(&map.root);
        assert!(room <= map.len() * ALL / MANY + 2 * ALL, "{room} for {}", map.len());
    }
    assert_eq!(room(&map.root), 0, "what is alone needs no node");
}

#[test]
fn neighbours_that_come_and_go_move_nothing() {
    let mut map = AddressMap::new();
    for (there, room_there) in
        [(2, 2), (3, 4), (5, 8), (6, 8), (9, 16), (11, 16), (17, FEW), (FEW + 1, ALL), (ALL, ALL)]
    {
        (0..there).for_each(|key| map.insert(key << USUAL, ()));
        assert_eq!(room(&map.root), room_there, "{there}");
    }
    for (left, room_there) in
        [(MANY, ALL), (MANY - 1, FEW), (9, FEW), (8, 12), (5, 12), (4, 6), (3, 6), (2, 3)]
    {
        for key in left..ALL {
            map.remove(key << USUAL);
        }
        assert_eq!((map.len(), room(&map.root)), (left, room_there));
        assert_eq!(map.check(), Ok(()));
    }
}

#[test]
fn what_is_not_as_it_should_be_is_told() {
    let mut map = AddressMap::new();
    (0..64 * 2).for_each(|key| map.insert(key << USUAL, ()));
    assert_eq!(map.check(), Ok(()));
    let broken = |breaks: &dyn Fn(&mut AddressMap<()>)| {
        let mut map = map.clone();
        breaks(&mut map);
        map.check().unwrap_err()
    };
    fn root(map: &mut AddressMap<()>) -> &mut Node<()> {
        let Child::Node(node) = &mut map.root else { panic!("it has a node") };
        node
    }
    fn first(map: &mut AddressMap<()>) -> &mut Node<()> {
        let Child::Node(node) = &mut root(map).children[0] else { panic!("it has two nodes") };
        node
    }
    let swapped = |map: &mut AddressMap<()>| first(map).children.swap(3, 4);
    assert!(broken(&swapped).contains("should not"), "not in order");
    let foreign =
        |map: &mut AddressMap<()>| first(map).children[63] = Child::Entry(64 << USUAL, ());
    assert!(broken(&foreign).contains("should not"), "of another node");
    let forgotten = |map: &mut AddressMap<()>| first(map).digits &= !1;
    assert!(broken(&forgotten).contains("should not"));
    let moved = |map: &mut AddressMap<()>| root(map).digits = 0b101;
    assert!(broken(&moved).contains("should not"), "another digit");
    let alone = |map: &mut AddressMap<()>| {
        first(map).children.truncate(1);
        first(map).digits = 1;
    };
    assert!(broken(&alone).contains("how many"), "a node for one");
    let nothing = |map: &mut AddressMap<()>| first(map).children[0] = Child::Nothing;
    assert!(broken(&nothing).contains("should not"), "nothing where something is");
    let few = |map: &mut AddressMap<()>| {
        first(map).children[..ALL - MANY + 1].fill(Child::Nothing);
        first(map).digits &= !0 << (ALL - MANY + 1);
    };
    assert!(broken(&few).contains("how many"), "spread, and too few");
    let wide = |map: &mut AddressMap<()>| first(map).at = 1 << (USUAL + 11);
    assert!(broken(&wide).contains("no smaller"));
    assert!(broken(&|map| map.len += 1).contains("129 entries are counted and 128 there"));
}
