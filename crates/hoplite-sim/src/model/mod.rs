//! The expected contents of every object, computed without asking the nodes.

mod fold;

pub use fold::DTYPES;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Dtype, Edition, Header, ObjectId, Op};

use crate::masses::{member, Mass};
use crate::rng::SimRng;

/// The origin of an object's bytes.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A client put it. The content follows from id, size and dtype.
    Put { dtype: Option<Dtype> },
    /// The fold over `num_objects` of `sources`.
    Reduction { sources: Vec<ObjectId>, num_objects: usize, op: Op, dtype: Dtype, size: u64, fixed: bool },
}

/// All objects of a run.
#[derive(Default)]
pub struct Model {
    origins: BTreeMap<ObjectId, Origin>,
    /// Sources of each sealed reduction target, by edition. An edition has one set of sources for ever.
    sealed: BTreeMap<(ObjectId, Option<Edition>), Vec<ObjectId>>,
    puts: BTreeMap<(ObjectId, u64, u8), Rc<[u8]>>,
    /// Objects that are put with several contents of one size, and the number of contents.
    variants: BTreeMap<ObjectId, u8>,
    /// Floats whose sums depend on the order of the additions, and the results of reductions over them.
    inexact: BTreeSet<ObjectId>,
    /// Objects with two contents, one on each side of a split.
    doubted: BTreeSet<ObjectId>,
    /// Results of reductions, by target and sources. The sources of a sealed target never change.
    folds: BTreeMap<(ObjectId, Vec<ObjectId>), Rc<[u8]>>,
    /// The content that was sealed first under an id.
    contents: BTreeMap<ObjectId, Rc<[u8]>>,
    /// Objects that a client has read.
    seen: BTreeSet<ObjectId>,
    /// Contents that cannot be judged yet, because one of their sources is the target of a reduction that is still
    /// unknown.
    postponed: Vec<(ObjectId, Vec<ObjectId>, Vec<u8>)>,
    masses: Vec<Mass>,
    pub judged: u64,
}

/// The origin of a member of a mass.
static MEMBER: Origin = Origin::Put { dtype: None };

/// The header of a put of `size` bytes of `dtype`.
pub fn header(dtype: Option<Dtype>, size: u64) -> Header {
    match dtype {
        Some(dtype) => Header::array(dtype, size / dtype.size() as u64),
        None => Header::default(),
    }
}

impl Model {
    pub fn add(&mut self, id: ObjectId, origin: Origin) {
        self.origins.insert(id, origin);
    }

    pub fn add_mass(&mut self, mass: Mass) {
        self.masses.push(mass);
    }

    /// The number of objects without a name: the members of all masses.
    pub fn members(&self) -> u64 {
        self.masses.iter().map(|mass| u64::from(mass.count)).sum()
    }

    fn mass_of(&self, id: ObjectId) -> Option<&Mass> {
        let (number, _) = member(id)?;
        self.masses.iter().find(|mass| mass.number == number)
    }

    /// The size of a member of a mass.
    pub fn member_size(&self, id: ObjectId) -> Option<u64> {
        self.mass_of(id).map(|mass| mass.size)
    }

    fn origin(&self, id: ObjectId) -> Option<&Origin> {
        self.origins.get(&id).or_else(|| self.mass_of(id).map(|_| &MEMBER))
    }

    pub fn knows(&self, id: ObjectId) -> bool {
        self.origin(id).is_some()
    }

    pub fn dtype(&self, id: ObjectId) -> Option<Dtype> {
        match self.origin(id)? {
            Origin::Put { dtype } => *dtype,
            Origin::Reduction { dtype, .. } => Some(*dtype),
        }
    }

    /// The size of a reduction's target. `None` for a put, whose client chooses the size.
    pub fn size(&self, id: ObjectId) -> Option<u64> {
        match self.origin(id)? {
            Origin::Put { .. } => None,
            Origin::Reduction { size, .. } => Some(*size),
        }
    }

    /// Whether this reduction's target was ever sealed.
    pub fn was_sealed(&self, id: ObjectId) -> bool {
        self.sealed.contains_key(&(id, None))
    }

    /// Whether this object was ever sealed.
    pub fn has_content(&self, id: ObjectId) -> bool {
        self.contents.contains_key(&id)
    }

    /// Records whether reductions to or from this object give the same result in any order.
    pub fn expect_exact(&mut self, id: ObjectId, exact: bool) {
        if !exact {
            self.inexact.insert(id);
        }
    }

    /// Records that the object is put with `count` contents of one size. Any of them may become its content.
    pub fn expect_variants(&mut self, id: ObjectId, count: u8) {
        if count > 1 {
            self.variants.insert(id, count);
        }
    }

    /// The bytes that a put of `size` writes.
    pub fn put_content(&mut self, id: ObjectId, size: u64, variant: u8) -> Rc<[u8]> {
        let dtype = self.dtype(id);
        let exact = !self.inexact.contains(&id);
        let fresh = || fresh_content(id, size, variant, dtype, exact).into();
        if member(id).is_some() {
            return fresh();
        }
        self.puts.entry((id, size, variant)).or_insert_with(fresh).clone()
    }

    /// The number of the content that equals these bytes, if the object is put with several contents.
    pub fn variant_of(&mut self, id: ObjectId, bytes: &[u8]) -> Option<u8> {
        let count = self.variants.get(&id).copied()?;
        (0..count).find(|&variant| *self.put_content(id, bytes.len() as u64, variant) == *bytes)
    }

    /// Records that `id` was sealed with `sources`. An error if it was sealed with other sources before.
    pub fn on_sealed(
        &mut self,
        id: ObjectId,
        edition: Option<Edition>,
        sources: &[ObjectId],
    ) -> Result<(), String> {
        let Some(origin) = self.origin(id) else { return Ok(()) };
        match origin {
            // Inline objects arrive without their seal.
            Origin::Reduction { size, .. } if sources.is_empty() && *size <= INLINE_BYTES_MAX => {
                return Ok(())
            }
            Origin::Put { .. } if sources.is_empty() => return Ok(()),
            Origin::Put { .. } => return Err(format!("{id:?} was put, yet its seal names sources")),
            Origin::Reduction { sources: declared, num_objects, fixed, .. } => {
                judge_sources(id, declared, *num_objects, *fixed, sources)?;
            }
        }
        for key in [(id, edition), (id, None)] {
            let before = self.sealed.entry(key).or_insert_with(|| sources.to_vec());
            // Another edition may fold the same sources in another order.
            let same = match key.1 {
                Some(_) => before == sources,
                None => BTreeSet::from_iter(before.iter()) == BTreeSet::from_iter(sources),
            };
            if !same {
                return Err(format!("two sealed contents of {id:?}: over {before:?} and over {sources:?}"));
            }
        }
        Ok(())
    }

    /// Compares sealed bytes of `id` with the expected ones.
    pub fn judge(&mut self, id: ObjectId, sources: &[ObjectId], bytes: &[u8]) -> Result<(), String> {
        if !self.knows(id) {
            return Ok(());
        }
        self.judged += 1;
        // An earlier verdict stands, even if a source was lost since and made again over other sources.
        let was_judged = self.contents.get(&id).is_some_and(|known| **known == *bytes);
        if was_judged || self.is_in_doubt(id) || self.variant_of(id, bytes).is_some() {
            return Ok(());
        }
        let writings = match sources {
            [] => self.sealed_writings(id),
            _ => vec![sources.to_vec()],
        };
        let mut verdict = Ok(());
        for over in writings {
            let Some(expected) = self.content(id, &over, bytes.len() as u64)? else {
                self.postponed.push((id, over, bytes.to_vec()));
                return Ok(());
            };
            verdict = match self.depends_on_order(id) {
                true => fold::judge_close(id, &expected, bytes, self.dtype(id)),
                false => same(id, &expected, bytes),
            };
            if verdict.is_ok() {
                break;
            }
        }
        verdict
    }

    /// The sources of each sealed writing of the object. They differ only after a split of the network. The edition of
    /// some bytes is not known.
    fn sealed_writings(&self, id: ObjectId) -> Vec<Vec<ObjectId>> {
        let of_id = self.sealed.range((id, None)..).take_while(|((of, _), _)| *of == id);
        let mut writings: Vec<_> = of_id.map(|(_, over)| over.clone()).collect();
        writings.dedup();
        match writings.is_empty() {
            true => vec![Vec::new()],
            false => writings,
        }
    }

    /// Whether it is a sum, product or mean of inexact floats that were folded in order of arrival.
    fn depends_on_order(&self, id: ObjectId) -> bool {
        let in_any_order = matches!(
            self.origins.get(&id),
            Some(Origin::Reduction { op: Op::Sum | Op::Prod | Op::Mean, fixed: false, .. })
        );
        in_any_order && self.inexact.contains(&id)
    }

    /// Records sealed bytes of `id`. An error if any node sealed other bytes before.
    pub fn on_content(&mut self, id: ObjectId, bytes: &[u8]) -> Result<(), String> {
        if member(id).is_some() {
            // A member of a mass has only one possible content.
            return Ok(());
        }
        let known = self.contents.entry(id).or_insert_with(|| bytes.into());
        same(id, known, bytes).map_err(|how| format!("two sealed contents: {how}"))
    }

    /// The content that was sealed first under `id`.
    pub fn content_of(&self, id: ObjectId) -> Option<Rc<[u8]>> {
        self.contents.get(&id).cloned()
    }

    /// Replaces the content of `id`. All nodes that had the earlier content have died.
    pub fn replace_content(&mut self, id: ObjectId, sources: &[ObjectId], bytes: &[u8]) {
        self.contents.insert(id, bytes.into());
        // Cached folds over the old content are no longer valid.
        self.folds.clear();
        // A node that got a small object inline does not know its sources.
        let known = self.sealed.remove(&(id, None)).filter(|_| !sources.is_empty());
        if known.is_some() {
            self.sealed.insert((id, None), sources.to_vec());
        }
    }

    /// Both sides of a split made this object. Reductions over it are not judged.
    pub fn doubt(&mut self, id: ObjectId) {
        self.doubted.insert(id);
    }

    fn is_in_doubt(&self, id: ObjectId) -> bool {
        let reduced_of = match self.origins.get(&id) {
            Some(Origin::Reduction { sources, .. }) => &sources[..],
            _ => &[],
        };
        reduced_of.iter().any(|source| self.doubted.contains(source) || self.is_in_doubt(*source))
    }

    /// Whether some writing of this reduction's target was sealed over these sources.
    pub fn was_sealed_over(&self, id: ObjectId, sources: &[ObjectId]) -> bool {
        let of_id = self.sealed.range((id, None)..).take_while(|((of, _), _)| *of == id);
        of_id.into_iter().any(|(_, known)| {
            BTreeSet::from_iter(known.iter()) == BTreeSet::from_iter(sources) && known.len() == sources.len()
        })
    }

    /// Forgets all about this name. A new content is put under it.
    pub fn begin_anew(&mut self, id: ObjectId) {
        self.forget_content(id);
        self.origins.insert(id, Origin::Put { dtype: None });
        self.puts.retain(|(of, _, _), _| *of != id);
        self.sealed.retain(|(of, _), _| *of != id);
        self.seen.remove(&id);
        self.variants.remove(&id);
        self.expect_exact(id, false);
    }

    /// A client was given a view of `id`.
    pub fn on_seen(&mut self, id: ObjectId) {
        self.seen.insert(id);
    }

    /// The content that was put and sealed under `id`, if no client has read it.
    pub fn unseen_put(&self, id: ObjectId) -> Option<Rc<[u8]>> {
        let is_put = matches!(self.origins.get(&id), Some(Origin::Put { .. }));
        self.contents.get(&id).filter(|_| is_put && !self.seen.contains(&id)).cloned()
    }

    /// Forgets the content of `id`, which was withdrawn before any client saw it.
    pub fn forget_content(&mut self, id: ObjectId) {
        self.contents.remove(&id);
    }

    /// Judges the postponed contents. A content whose sources never became known cannot be judged.
    pub fn judge_postponed(&mut self) -> Result<(), String> {
        for (id, sources, bytes) in std::mem::take(&mut self.postponed) {
            if self.is_in_doubt(id) {
                continue;
            }
            if let Some(expected) = self.content(id, &sources, bytes.len() as u64)? {
                match self.depends_on_order(id) {
                    true => fold::judge_close(id, &expected, &bytes, self.dtype(id))?,
                    false => same(id, &expected, &bytes)?,
                }
            }
        }
        Ok(())
    }

    fn content(&mut self, id: ObjectId, over: &[ObjectId], size: u64) -> Result<Option<Rc<[u8]>>, String> {
        let Some(origin) = self.origin(id).cloned() else {
            return Err(format!("{id:?} went into a reduction, but nobody made it"));
        };
        let (op, dtype, declared_size) = match origin {
            Origin::Put { .. } => {
                let size = self.member_size(id).unwrap_or(size);
                return Ok(Some(self.put_content(id, size, 0)));
            }
            Origin::Reduction { op, dtype, size, .. } => (op, dtype, size),
        };
        if size != declared_size {
            return Err(format!("{id:?} has {size} B instead of {declared_size} B"));
        }
        let over = match self.sealed.get(&(id, None)) {
            Some(known) if over.is_empty() => known.clone(),
            None if over.is_empty() => return Ok(None),
            _ => over.to_vec(),
        };
        if let Some(known) = self.folds.get(&(id, over.clone())) {
            return Ok(Some(known.clone()));
        }
        let mut parts = Vec::new();
        for source in &over {
            let nested = self.sealed.get(&(*source, None)).cloned();
            if nested.is_none() && matches!(self.origins.get(source), Some(Origin::Reduction { .. })) {
                return Ok(None);
            }
            match self.content(*source, &nested.unwrap_or_default(), size)? {
                Some(part) => parts.push(part),
                None => return Ok(None),
            }
        }
        let folded: Rc<[u8]> = fold::fold_all(op, dtype, &parts).into();
        self.folds.insert((id, over), folded.clone());
        Ok(Some(folded))
    }
}

fn judge_sources(
    id: ObjectId,
    declared: &[ObjectId],
    num_objects: usize,
    fixed: bool,
    sources: &[ObjectId],
) -> Result<(), String> {
    let places: Option<Vec<usize>> =
        sources.iter().map(|source| declared.iter().position(|other| other == source)).collect();
    let Some(places) = places else {
        return Err(format!("{id:?} was reduced over {sources:?}, not all of which were asked for"));
    };
    let mut sorted = places.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != places.len() {
        return Err(format!("{id:?}: a source went in twice: {sources:?}"));
    }
    if sources.len() != num_objects {
        return Err(format!("{id:?}: {} sources instead of {num_objects}", sources.len()));
    }
    if fixed && sorted != places {
        return Err(format!("{id:?}: fixed order, yet folded as {places:?}"));
    }
    Ok(())
}

fn same(id: ObjectId, expected: &[u8], found: &[u8]) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{id:?} has {} B instead of {} B", found.len(), expected.len()));
    }
    if expected == found {
        return Ok(());
    }
    match expected.iter().zip(found).position(|(a, b)| a != b) {
        Some(at) => Err(format!(
            "wrong content of {id:?} from byte {at} of {}: {:02x?} instead of {:02x?}",
            expected.len(),
            &found[at..found.len().min(at + 8)],
            &expected[at..expected.len().min(at + 8)]
        )),
        None => Ok(()),
    }
}

fn fresh_content(id: ObjectId, size: u64, variant: u8, dtype: Option<Dtype>, exact: bool) -> Vec<u8> {
    let seed = u64::from_le_bytes(id.0[..8].try_into().expect("8 bytes"));
    let mut rng = SimRng::new(seed ^ size ^ u64::from(variant) << 56);
    let mut bytes = vec![0; size as usize];
    // Powers of two. Their sums and products are exact in any order, so floats can be compared too.
    match dtype {
        Some(Dtype::F32) if !exact => bytes
            .chunks_exact_mut(4)
            .for_each(|out| out.copy_from_slice(&(uneven(&mut rng) as f32).to_le_bytes())),
        Some(Dtype::F64) if !exact => {
            bytes.chunks_exact_mut(8).for_each(|out| out.copy_from_slice(&uneven(&mut rng).to_le_bytes()))
        }
        Some(Dtype::F32) => bytes
            .chunks_exact_mut(4)
            .for_each(|out| out.copy_from_slice(&(small(&mut rng) as f32).to_le_bytes())),
        Some(Dtype::F64) => {
            bytes.chunks_exact_mut(8).for_each(|out| out.copy_from_slice(&small(&mut rng).to_le_bytes()))
        }
        _ => rng.fill(&mut bytes),
    }
    bytes
}

/// A positive number near one. No sum of such numbers cancels out, and no product of hundreds overflows.
fn uneven(rng: &mut SimRng) -> f64 {
    0.9 + rng.between(0, 1 << 30) as f64 / 6e9
}

fn small(rng: &mut SimRng) -> f64 {
    *rng.pick(&[1.0, -1.0, 2.0, -2.0, 4.0, -4.0])
}
