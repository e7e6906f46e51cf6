//! The types and constants a C file declares, read from the debug information that gcc makes of it.
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    process::Command,
};

use super::{Scratch, gcc, run};

/// Everything declared, by name.
#[derive(Default)]
pub struct Types {
    /// `struct x` or `union x` to its size in bytes.
    pub sizes: BTreeMap<String, u64>,
    /// `x.field` or `x.field.inner` to where it is; members of anonymous parts count as members of the whole.
    pub fields: BTreeMap<String, Field>,
    /// Enumerators.
    pub constants: BTreeMap<String, i64>,
}

/// Where a field is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the outermost type.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Its type as C would say it.
    pub of: String,
}

/// Compiles `text` against the headers in `include` and reads what it declares.
pub fn types(include: &Path, text: &str) -> Types {
    let dir = Scratch::new("dwarf");
    let (source, object) = (dir.write("t.c", text), dir.path("t.o"));
    run(gcc(include)
        .args(["-g", "-fno-eliminate-unused-debug-types", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object));
    let dump = run(Command::new("readelf").args(["--debug-dump=info"]).arg(&object));
    let dump = Dump::parse(&dump);
    let mut all = Types::default();
    for die in dump.dies.values() {
        match (die.tag.as_str(), &die.name) {
            ("structure_type" | "union_type", Some(name)) if die.size.is_some() => {
                all.sizes.insert(format!("{} {name}", dump.keyword(die)), die.size.unwrap_or(0));
                dump.members(die, name, 0, &mut all.fields);
            }
            ("enumerator", Some(name)) => {
                all.constants.insert(name.clone(), die.value);
            }
            _ => {}
        }
    }
    all
}

#[derive(Default)]
struct Die {
    tag: String,
    name: Option<String>,
    size: Option<u64>,
    of: Option<u64>,
    location: u64,
    value: i64,
    upper_bound: Option<u64>,
    children: Vec<u64>,
}

struct Dump {
    dies: HashMap<u64, Die>,
}

impl Dump {
    fn parse(text: &str) -> Dump {
        let mut dies: HashMap<u64, Die> = HashMap::new();
        let mut stack: Vec<(u32, u64)> = Vec::new();
        let mut current = 0;
        for line in text.lines() {
            if let Some(tag) = line.split("(DW_TAG_").nth(1) {
                let mut at = line.trim_start().split(['<', '>']).filter(|s| !s.is_empty());
                let depth: u32 = at.next().and_then(|s| s.parse().ok()).expect("a depth");
                current = hex(at.next().expect("an offset"));
                stack.retain(|(d, _)| *d < depth);
                if let Some((_, parent)) = stack.last() {
                    dies.get_mut(parent).expect("a parent").children.push(current);
                }
                stack.push((depth, current));
                dies.insert(current, Die { tag: tag.trim_end_matches(')').into(), ..Die::default() });
            } else if let Some((attribute, value)) =
                line.split("DW_AT_").nth(1).and_then(|a| a.split_once(':'))
            {
                let die = dies.get_mut(&current).expect("an entry");
                match attribute.trim() {
                    "name" => die.name = value.rsplit(": ").next().map(|s| s.trim().to_string()),
                    "byte_size" => die.size = Some(number(value) as u64),
                    "type" => die.of = value.split(['<', '>']).nth(1).map(hex),
                    "data_member_location" => die.location = number(value) as u64,
                    "const_value" => die.value = number(value),
                    "upper_bound" => die.upper_bound = Some(number(value) as u64),
                    _ => {}
                }
            }
        }
        Dump { dies }
    }

    fn members(&self, die: &Die, path: &str, base: u64, into: &mut BTreeMap<String, Field>) {
        for child in die.children.iter().map(|c| &self.dies[c]).filter(|c| c.tag == "member") {
            let offset = base + child.location;
            let body = child.of.map(|t| &self.dies[&t]);
            let path = match &child.name {
                Some(name) => {
                    let path = format!("{path}.{name}");
                    let field = Field { offset, size: self.size(child.of), of: self.spell(child.of) };
                    into.insert(path.clone(), field);
                    path
                }
                None => path.to_string(),
            };
            if let Some(body) =
                body.filter(|b| b.name.is_none() && matches!(&*b.tag, "structure_type" | "union_type"))
            {
                self.members(body, &path, offset, into);
            }
        }
    }

    fn size(&self, of: Option<u64>) -> u64 {
        let Some(die) = of.map(|t| &self.dies[&t]) else { return 0 };
        match die.tag.as_str() {
            "array_type" => self.lengths(die).iter().product::<u64>() * self.size(die.of),
            _ => die.size.unwrap_or_else(|| self.size(die.of)),
        }
    }

    fn lengths(&self, die: &Die) -> Vec<u64> {
        let bounds = die.children.iter().map(|c| &self.dies[c]).filter(|c| c.tag == "subrange_type");
        bounds.map(|c| c.upper_bound.map_or(0, |n| n + 1)).collect()
    }

    fn keyword(&self, die: &Die) -> &'static str {
        match die.tag.as_str() {
            "union_type" => "union",
            "enumeration_type" => "enum",
            _ => "struct",
        }
    }

    fn spell(&self, of: Option<u64>) -> String {
        let Some(die) = of.map(|t| &self.dies[&t]) else { return "void".into() };
        match (die.tag.as_str(), &die.name) {
            ("pointer_type", _) => format!("{}*", self.spell(die.of)),
            ("const_type", _) => format!("const {}", self.spell(die.of)),
            ("volatile_type", _) => format!("volatile {}", self.spell(die.of)),
            ("array_type", _) => format!("{}{:?}", self.spell(die.of), self.lengths(die)),
            ("subroutine_type", _) => {
                let takes: Vec<String> = die.children.iter().map(|c| self.spell(self.dies[c].of)).collect();
                format!("{}({})", self.spell(die.of), takes.join(", "))
            }
            ("structure_type" | "union_type" | "enumeration_type", name) => {
                format!("{} {}", self.keyword(die), name.as_deref().unwrap_or("{}"))
            }
            (_, Some(name)) => name.clone(),
            (tag, None) => tag.into(),
        }
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("not hexadecimal: {text}"))
}

fn number(text: &str) -> i64 {
    // Some releases of readelf name the form first: "(data1) 8".
    let text = text.split_whitespace().find(|w| !w.starts_with('(')).expect("a number");
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).expect("hexadecimal") as i64,
        None => text.parse().unwrap_or_else(|_| panic!("not a number: {text}")),
    }
}
