//! The distribution's compiled providers, each with a device of its kind that a scripted kernel shows (`c-tests/hardware`): with our
//! library and with rdma-core's they must say the same and send the same commands.
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    report::{Ctx, Trial},
    run, stage,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "hardware", limit: Duration::from_secs(120), run: hardware }];

const LIMIT: Duration = Duration::from_secs(20);

/// A device as its kernel driver would show it.
struct Device {
    /// What its provider is called.
    provider: &'static str,
    name: &'static str,
    /// `enum rdma_driver_id`.
    driver: u32,
    abi: u32,
    /// `enum ibv_node_type`.
    node_type: u32,
    /// PCI vendor and device; none where it hangs on no bus.
    pci: Option<(u32, u32)>,
    /// Its provider's table has that PCI device, so that it is found where the kernel does not tell its driver.
    by_pci: bool,
    /// QPs of which kind the scripted kernel can make with it.
    objects: Option<&'static str>,
}

const fn device(
    provider: &'static str,
    name: &'static str,
    driver: u32,
    abi: u32,
    node_type: u32,
    pci: Option<(u32, u32)>,
) -> Device {
    Device { provider, name, driver, abi, node_type, pci, by_pci: pci.is_some(), objects: None }
}

impl Device {
    const fn with(self, objects: &'static str) -> Device {
        Device { objects: Some(objects), ..self }
    }
    const fn by_driver_only(self) -> Device {
        Device { by_pci: false, ..self }
    }
}

const CA: u32 = 1;
const RNIC: u32 = 4;
const UNSPECIFIED: u32 = 7;

const DEVICES: &[Device] = &[
    device("mlx5", "mlx5_0", 1, 1, CA, Some((0x15b3, 0x1017))).with("rc"),
    device("efa", "efa_0", 17, 1, UNSPECIFIED, Some((0x1d0f, 0xefa0))).with("ud"),
    device("mlx4", "mlx4_0", 2, 4, CA, Some((0x15b3, 0x1003))),
    device("cxgb4", "cxgb4_0", 4, 3, RNIC, Some((0x1425, 0x5401))),
    device("mthca", "mthca0", 5, 1, CA, Some((0x15b3, 0x6274))),
    device("bnxt_re", "bnxt_re0", 6, 1, CA, Some((0x14e4, 0x16d7))),
    device("ocrdma", "ocrdma0", 7, 2, CA, Some((0x10df, 0x0720))),
    device("irdma", "irdma0", 9, 5, CA, Some((0x8086, 0x1592))).by_driver_only(),
    device("vmw_pvrdma", "vmw_pvrdma0", 10, 3, CA, Some((0x15ad, 0x0820))),
    device("qedr", "qedr0", 11, 8, CA, Some((0x1077, 0x1656))),
    device("hns", "hns_0", 12, 1, CA, Some((0x19e5, 0xa222))),
    device("rxe", "rxe0", 14, 2, CA, None),
    device("hfi1verbs", "hfi1_0", 15, 6, CA, Some((0x8086, 0x24f0))),
    device("ipathverbs", "qib0", 16, 2, CA, Some((0x1077, 0x7322))),
    device("siw", "siw0", 18, 1, RNIC, None),
    device("erdma", "erdma_0", 19, 1, CA, Some((0x1ded, 0x107f))),
    device("mana", "mana_0", 20, 1, CA, Some((0x1414, 0x00ba))).by_driver_only(),
];

fn hardware(ctx: &mut Ctx<'_>) {
    let work = Work(std::env::temp_dir().join(format!("anyverbs-test-hardware-{}", std::process::id())));
    if let Err(why) = work.build() {
        return ctx.check("build", Err(why));
    }
    for device in DEVICES {
        let provider = format!("/usr/lib/x86_64-linux-gnu/libibverbs/lib{}-rdmav34.so", device.provider);
        if !Path::new(&provider).exists() {
            ctx.skip(device.provider, "the distribution's ibverbs-providers does not have it");
            continue;
        }
        for netlink in [true, false] {
            if netlink || device.by_pci {
                let found = if netlink { "by driver" } else { "by PCI device" };
                let check = compared(ctx, &work, device, netlink);
                ctx.check(format!("{} {found}", device.provider), check);
            }
        }
    }
    for device in DEVICES.iter().filter(|device| device.objects.is_some()) {
        for forgiven in [false, true] {
            let name = if forgiven { "and RDMAV_ALLOW_DISASSOC_DESTROY" } else { "with all its objects" };
            let check = unplugged(ctx, &work, device, forgiven);
            ctx.check(format!("{} taken away, {name}", device.provider), check);
        }
    }
    let strange = Device { abi: 99, ..device("mlx5", "mlx5_0", 1, 99, CA, Some((0x15b3, 0x1017))) };
    ctx.check(
        "a kernel ABI that the provider does not take is refused in one line",
        refused(ctx, &work, &strange),
    );
    let unknown = device("none", "none_0", 0, 1, CA, Some((0x15b3, 0xffff)));
    for (what, device) in [("of another kernel ABI", &strange), ("that nobody knows", &unknown)] {
        let check = warned(ctx, &work, device);
        ctx.check(format!("IBV_SHOW_WARNINGS, of a device {what}"), check);
    }
    for (how, variable) in
        [("init", None), ("late", None), ("asked", Some("RDMAV_FORK_SAFE")), ("asked", Some("IBV_FORK_SAFE"))]
    {
        let check = forked(ctx, &work, &DEVICES[0], how, variable);
        ctx.check(format!("fork protection, {how} {}", variable.unwrap_or("")), check);
    }
}

/// A folder with the double, the program and a sysfs of one device; removed when dropped.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Work {
    fn double(&self) -> PathBuf {
        self.0.join("kernel.so")
    }
    fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn build(&self) -> Result<(), String> {
        fs::create_dir_all(&self.0).map_err(|e| format!("{}: {e}", self.0.display()))?;
        let folder = stage::root().join("c-tests/hardware");
        let parts =
            ["hooks", "netlink", "commands", "driver"].map(|part| folder.join(part).with_extension("c"));
        let mut cc = compiler();
        cc.args(["-fPIC", "-shared", "-o"]).arg(self.double()).args(parts).arg("-ldl");
        run::run(cc, LIMIT * 3)?.success()?;
        for program in ["objects", "forks"] {
            let mut cc = compiler();
            let source = folder.join("program").join(program).with_extension("c");
            cc.arg("-o").arg(self.program(program)).arg(source).arg("-libverbs");
            run::run(cc, LIMIT * 3)?.success()?;
        }
        Ok(())
    }

    /// Shows a device in the folder that stands for sysfs.
    fn show(&self, device: &Device) -> io::Result<()> {
        let sysfs = self.0.join("sys");
        let _ = fs::remove_dir_all(&sysfs);
        let modalias = device.pci.map_or(String::new(), |(vendor, part)| {
            format!("pci:v{vendor:08X}d{part:08X}sv{vendor:08X}sd00000001bc02sc00i00\n")
        });
        let of_node = sysfs.join("class/infiniband_verbs/uverbs0");
        let of_device = sysfs.join("class/infiniband").join(device.name);
        for (file, text) in [
            (sysfs.join("class/infiniband_verbs/abi_version"), "6\n".to_string()),
            (of_node.join("ibdev"), format!("{}\n", device.name)),
            (of_node.join("dev"), "1:5\n".into()),
            (of_node.join("abi_version"), format!("{}\n", device.abi)),
            (of_node.join("device/modalias"), modalias.clone()),
            (of_device.join("device/modalias"), modalias),
            (of_device.join("node_guid"), "0002:c903:0000:1234\n".into()),
            (of_device.join("node_type"), format!("{}: CA\n", device.node_type)),
            (of_device.join("fw_ver"), "16.35.1000\n".into()),
            (of_device.join("ports/1/state"), "4: ACTIVE\n".into()),
        ] {
            fs::create_dir_all(file.parent().expect("a file in a folder"))?;
            fs::write(file, text)?;
        }
        Ok(())
    }

    /// Runs `objects` with one library; its output, and the commands that the kernel saw.
    fn run(
        &self,
        device: &Device,
        netlink: bool,
        lib: Option<&Path>,
    ) -> Result<(run::Outcome, String), String> {
        let mut cmd = self.command(device, "objects", device.objects.as_slice(), lib)?;
        if !netlink {
            cmd.env("SCRIPTED_NO_NETLINK", "1");
        }
        let outcome = run::run(cmd, LIMIT)?;
        Ok((outcome, fs::read_to_string(self.log()).unwrap_or_default()))
    }

    /// One of the programs with one library, and the device that it finds.
    fn command(
        &self,
        device: &Device,
        program: &str,
        args: &[&str],
        lib: Option<&Path>,
    ) -> Result<Command, String> {
        self.show(device).map_err(|e| format!("sysfs: {e}"))?;
        let _ = fs::remove_file(self.log());
        let (vendor, part) = device.pci.unwrap_or_default();
        let shown = format!(
            "{} {} {} {} {vendor:x} {part:x}",
            device.name, device.driver, device.abi, device.node_type
        );
        let mut cmd = run::command(self.program(program).to_str().expect("a plain path"), args);
        for inherited in [
            "LD_LIBRARY_PATH",
            "LD_PRELOAD",
            "ANYVERBS_SOFT",
            "ANYVERBS_PROVIDER",
            "RDMAV_DRIVERS",
            "IBV_DRIVERS",
            "RDMAV_FORK_SAFE",
            "IBV_FORK_SAFE",
            "IBV_SHOW_WARNINGS",
        ] {
            cmd.env_remove(inherited);
        }
        cmd.env("LD_PRELOAD", self.double()).env("SYSFS_PATH", self.0.join("sys"));
        cmd.env("ANYVERBS_SOFT", "0")
            .env("SCRIPTED_DEVICE", shown)
            .env("SCRIPTED_LOG", self.log())
            .env("ANYVERBS_EXPLAIN", "1");
        if let Some(lib) = lib {
            cmd.env("LD_LIBRARY_PATH", lib).env("ANYVERBS_PROVIDER", "plugin");
        }
        Ok(cmd)
    }
}

fn compiler() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    cc
}

/// Output and commands with both libraries: the same, and a context was made.
fn compared(ctx: &Ctx<'_>, work: &Work, device: &Device, netlink: bool) -> Result<(), String> {
    let lib = here(ctx).lib();
    let (theirs, their_commands) = work.run(device, netlink, None)?;
    let (ours, our_commands) = work.run(device, netlink, Some(&lib))?;
    let (theirs, ours) = (theirs.success()?, ours.success()?);
    if ours.out != theirs.out || !ours.out.contains("context made") || !ours.out.ends_with("closed: 0\n") {
        return Err(format!("rdma-core says\n{}\nwe say\n{ours}", theirs.out));
    }
    if our_commands != their_commands || our_commands.is_empty() {
        return Err(format!("rdma-core sends\n{their_commands}\nwe send\n{our_commands}"));
    }
    Ok(())
}

/// IBV_EVENT_DEVICE_FATAL, then EIO from every call; objects can be destroyed where somebody said that this will do.
fn unplugged(ctx: &Ctx<'_>, work: &Work, device: &Device, forgiven: bool) -> Result<(), String> {
    let lib = here(ctx).lib();
    let kind = device.objects.unwrap_or("rc");
    let said = |lib: Option<&Path>| -> Result<(String, String), String> {
        let mut cmd = work.command(device, "objects", &[kind, "gone"], lib)?;
        if forgiven {
            cmd.env("RDMAV_ALLOW_DISASSOC_DESTROY", "1");
        }
        let _ = fs::remove_file(work.log());
        let out = run::run(cmd, LIMIT)?.success()?.out;
        Ok((out, fs::read_to_string(work.log()).unwrap_or_default()))
    };
    let (theirs, ours) = (said(None)?, said(Some(&lib))?);
    let destroyed = ours.0.contains("destroyed: qp 0, cq 0, mr 0, pd 0") == forgiven;
    let told =
        ours.0.contains("event: 0 local catastrophic error") && ours.0.contains("port: EIO, pd EIO, mr EIO");
    if theirs == ours && destroyed && told {
        Ok(())
    } else {
        Err(format!("rdma-core says\n{}{}\nwe say\n{}{}", theirs.0, theirs.1, ours.0, ours.1))
    }
}

/// What rdma-core warns of, unasked or not, is warned of where somebody asks.
fn warned(ctx: &Ctx<'_>, work: &Work, device: &Device) -> Result<(), String> {
    let lib = here(ctx).lib();
    let warnings = |lib: Option<&Path>| -> Result<Vec<String>, String> {
        let mut cmd = work.command(device, "objects", &[], lib)?;
        cmd.env("IBV_SHOW_WARNINGS", "").env_remove("ANYVERBS_EXPLAIN");
        let mut lines: Vec<String> = run::run(cmd, LIMIT)?.err.lines().map(String::from).collect();
        // rdma-core tells each time that it looks.
        lines.sort();
        lines.dedup();
        Ok(lines)
    };
    let (theirs, ours) = (warnings(None)?, warnings(Some(&lib))?);
    let all = !theirs.is_empty() && theirs == ours;
    if all { Ok(()) } else { Err(format!("rdma-core says {theirs:?}, we say {ours:?}")) }
}

/// Which pages of registered memory children do not get, on a kernel that does not copy pinned ones: as with rdma-core.
fn forked(
    ctx: &Ctx<'_>,
    work: &Work,
    device: &Device,
    how: &str,
    variable: Option<&str>,
) -> Result<(), String> {
    let lib = here(ctx).lib();
    let said = |lib: Option<&Path>| -> Result<String, String> {
        let mut cmd = work.command(device, "forks", &[how], lib)?;
        if let Some(variable) = variable {
            cmd.env(variable, "1");
        }
        Ok(run::run(cmd, LIMIT)?.success()?.out)
    };
    let (theirs, ours) = (said(None)?, said(Some(&lib))?);
    if theirs == ours { Ok(()) } else { Err(format!("rdma-core says\n{theirs}\nwe say\n{ours}")) }
}

/// The device is not listed, and one line says why.
fn refused(ctx: &Ctx<'_>, work: &Work, device: &Device) -> Result<(), String> {
    let (outcome, _) = work.run(device, true, Some(&here(ctx).lib()))?;
    let lines = outcome.err.lines().filter(|line| line.contains("provider mlx5 takes kernel ABI")).count();
    if outcome.out == "no device\n" && lines == 1 { Ok(()) } else { Err(outcome.to_string()) }
}
