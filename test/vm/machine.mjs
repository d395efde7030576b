// One guest: QEMU with a stock kernel, the host's files, and one command to run.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Silence } from '../support/silence.mjs'
import { path } from './prepare.mjs'

const START = fileURLToPath(new URL('guest/start.sh', import.meta.url))
const TOP = fileURLToPath(new URL('../..', import.meta.url))
/** Not loaded on demand, or asked for by tests before anything demands them. */
const MODULES = [
  'ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_sh ip_vs_dh ip_vs_mh ip_vs_sed ip_vs_nq ip_vs_lblc ip_vs_lblcr',
  'ip_vs_fo ip_vs_ovf nf_conntrack_netlink nf_conntrack sctp dummy veth bridge tun xt_set xt_ipvs',
  'ip_set ip_set_bitmap_port ip_set_hash_ip ip_set_hash_net ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet',
  'nf_tables nft_compat nft_chain_nat nft_masq nft_numgen nft_fib_inet nft_reject_inet nft_ct nft_nat nft_log nft_limit',
  'xt_comment xt_mark xt_conntrack xt_addrtype xt_nat xt_multiport xt_MASQUERADE ipt_REJECT ip6t_REJECT',
]
/**
 * Nothing is measured at boot that a busy host would get wrong, and no clock watches for stalls that it would cause. The HPET says
 * its own rate. That of the TSC is measured, on a busy host as 359 MHz of 2,595: seconds in the guest were seven times too short,
 * and so was each limit of a test.
 */
const KERNEL_OPTIONS =
  'console=ttyS0 panic=-1 quiet mitigations=off no_timer_check tsc=unstable clocksource=hpet lpj=4000000 nowatchdog rcupdate.rcu_cpu_stall_suppress=1'
const RESULTS = join(TOP, '.cache/vm-results')
/** See guest/start.sh. */
const END = 0x04
/** Between two looks at how long a guest has been silent. */
const LOOK_EVERY_MS = 1_000
/** Left of a guest that has gone wrong. */
const CONSOLE_LINES = 40

/**
 * Boots `kernel` (of prepare.mjs), runs `command` (for sh) in the top folder of the checkout, and hands its output to
 * `write` as it comes. Gives the exit code, or undefined with the end of the kernel's log when there is none: because
 * the guest ended early, was silent for longer than `silentMs` of an idle machine (`isSilent`), or `signal` was aborted.
 */
export async function runInGuest({ kernel, command, files = {}, silentMs, signal, write }) {
  const job = mkdtempSync(join(tmpdir(), 'kprobe-vm-'))
  try {
    writeJob(job, { kernel, command, files })
    let child
    const silence = new Silence()
    let isSilent = false
    const stop = () => child?.kill('SIGKILL')
    const receive = chunk => {
      silence.heard()
      const isLast = chunk.at(-1) === END && existsSync(join(job, 'exit-code'))
      write(isLast ? chunk.subarray(0, -1) : chunk)
      if (isLast) stop()
    }
    const server = createServer(socket => socket.on('data', receive)).listen(join(job, 'output'))
    await once(server, 'listening')
    child = spawn('setpriv', ['--pdeathsig', 'KILL', ...qemu(kernel, job)], {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, PATH: path() },
    })
    child.stderr.on('data', write)
    const timer = setInterval(() => {
      isSilent ||= silence.isLongerThan(silentMs)
      if (isSilent) stop()
    }, LOOK_EVERY_MS)
    signal?.addEventListener('abort', stop)
    await once(child, 'close')
    clearInterval(timer)
    signal?.removeEventListener('abort', stop)
    await new Promise(resolve => server.close(resolve))
    keepResults(join(job, 'results'))
    const exitCode = readIfThere(join(job, 'exit-code'))
    return exitCode === undefined ? { console: consoleOf(job), isSilent } : { exitCode: Number(exitCode) }
  } finally {
    rmSync(job, { recursive: true, force: true })
  }
}

function writeJob(job, { kernel, command, files }) {
  copyFileSync(START, join(job, 'start.sh'))
  mkdirSync(join(job, 'results'))
  const texts = { modules: kernel.modules, load: MODULES.join('\n'), folder: TOP, command, ...files }
  for (const [name, text] of Object.entries(texts)) writeFileSync(join(job, name), text)
}

function keepResults(results) {
  if (readdirSync(results).length === 0) return
  rmSync(RESULTS, { recursive: true, force: true })
  cpSync(results, RESULTS, { recursive: true })
}

function qemu(kernel, job) {
  const share = (tag, folder, more) =>
    `local,path=${folder},mount_tag=${tag},security_model=none,multidevs=remap${more}`
  return [
    'qemu-system-x86_64',
    ...['-accel', 'tcg,thread=multi', '-smp', '2', '-cpu', 'max', '-m', '2048'],
    ...['-display', 'none', '-monitor', 'none', '-no-reboot', '-nic', 'none', '-nodefaults'],
    ...['-serial', `file:${join(job, 'console')}`],
    ...['-device', 'virtio-serial-pci', '-chardev', `socket,id=output,path=${join(job, 'output')}`],
    ...['-device', 'virtserialport,chardev=output,name=output'],
    ...['-virtfs', share('host', '/', ',readonly=on'), '-virtfs', share('job', job, '')],
    ...['-kernel', kernel.vmlinuz, '-initrd', kernel.initrd],
    ...['-append', KERNEL_OPTIONS],
  ]
}

function readIfThere(file) {
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined
}

function consoleOf(job) {
  const lines = (readIfThere(join(job, 'console')) ?? '').split('\n')
  return lines.slice(-CONSOLE_LINES).join('\n')
}
