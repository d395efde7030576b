import { type Clock, systemClock } from '../base/clock.ts'
import { codeOf, failureText } from '../base/errors.ts'
import type { Config } from '../config/config.ts'
import { PROCESS_GROUP, RUN_FLAGS, WITHOUT_EFFECT } from '../config/flags.ts'
import { KERNEL, withPlane } from '../daemon/open.ts'
import { tuneKernel, writeRecord } from '../daemon/tune.ts'
import { createConntrackClient } from '../kernel/conntrack/client.ts'
import type { SysctlLeft, TuneReport } from '../kernel/sysctl/sysctls.ts'
import type { KernelSockets } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'
import { counterOf } from '../reconcile/dataplane.ts'
import { OUTPUTS, outputFlag, writeDocument } from './document.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io, lent, tableText } from './io.ts'
import { flaggedCommand } from './request.ts'

export interface InitMachine {
  /** The folder that contains proc and sys, with a slash at its end. */
  readonly root: string
  readonly sockets: KernelSockets
  readonly clock: Clock
}

export const initCommand = (machine: InitMachine): Command =>
  flaggedCommand({
    name: 'init',
    description:
      'Runs the steps that need more privileges than serving, and exits: queries nf_tables (in IPVS mode: IPVS) and conntrack,\n' +
      'which loads their modules, and sets the sysctls of connection tracking to the values of the flags or the --config\n' +
      'file, and those of IPVS and iptables mode to the values that the modes need. Larger conntrack values that an\n' +
      'operator has set stay. init reports a sysctl that it cannot write, and continues: kprobe serves without it.\n' +
      'Exits 1 when the kernel does not answer.',
    details: [WITHOUT_EFFECT],
    listed: [...RUN_FLAGS.filter(({ group }) => group !== PROCESS_GROUP), outputFlag(OUTPUTS)],
    flags: [outputFlag(OUTPUTS)],
    read: reader => ({ output: reader.oneOf('output', OUTPUTS, 'text') }),
    async run({ output }, { config }, io) {
      // Each check loads its kernel module, which creates the settings of that module.
      const answers = [
        await answerOf(findMode(config.proxyMode).kernelPart, () => askMode(config, machine)),
        await answerOf('conntrack', () => askConntrack(machine)),
      ]
      const tuned = await tuneKernel(config, { root: machine.root })
      await writeRecord(config, tuned.written, machine).catch((error: unknown) =>
        io.err(`kprobe init: cannot record the values that cleanup restores: ${failureText(error)}\n`),
      )
      if (output === 'text') printText({ tuned, answers }, io)
      else await writeDocument({ settings: settingRows(tuned), kernel: answers }, output, io)
      return answers.every(({ answers: isThere }) => isThere) ? EXIT_FINE : EXIT_FAILED
    },
  })

export const command = initCommand({ root: '/', sockets: KERNEL, clock: systemClock })

interface Answer {
  readonly subject: string
  readonly answers: boolean
  readonly text: string
}

async function answerOf(subject: string, ask: () => Promise<string>): Promise<Answer> {
  try {
    return { subject, answers: true, text: await ask() }
  } catch (error) {
    return { subject, answers: false, text: failureText(error) }
  }
}

async function askMode(config: Config, { clock, sockets }: InitMachine): Promise<string> {
  const generation = await withPlane<number>({ config, clock, sockets }, ({ plane }) =>
    plane.observe().then(observation => counterOf(observation.generation)),
  )
  return `answers; the rules are at generation ${generation}`
}

async function askConntrack({ clock, sockets }: InitMachine): Promise<string> {
  const client = createConntrackClient({ openTransport: sockets.netfilter, clock })
  const { entries, entriesMax } = await lent(client, () => client.statistics())
  return `answers; ${entries} ${entriesMax === undefined ? '' : `of ${entriesMax} `}entries`
}

interface SettingRow {
  readonly setting: string
  readonly value: number | undefined
  readonly result: 'set' | 'left' | 'failed'
  readonly text: string
}

function settingRows({ written, left, failed }: TuneReport): readonly SettingRow[] {
  const row = (result: SettingRow['result'], { name, value }: Named, text: string): SettingRow => ({
    setting: name,
    value,
    result,
    text,
  })
  return [
    ...written.map(each => row('set', each, `was ${each.before}`)),
    ...left.map(each => row('left', each, whyLeft(each))),
    ...failed.map(each => row('failed', each, whyFailed(each.error))),
  ]
}

type Named = { readonly name: string; readonly value: number | undefined }

/** Sysctls of the initial user namespace have an owner, and a container may have them read-only. */
const NO_WRITE: ReadonlySet<string> = new Set(['EACCES', 'EROFS'])

function whyFailed(error: Error): string {
  const hint = NO_WRITE.has(codeOf(error))
    ? '; run `kprobe init` as root where /proc/sys can be written, such as in a privileged init container'
    : ''
  return failureText(error) + hint
}

function whyLeft({ reason, wanted }: SysctlLeft): string {
  switch (reason) {
    case 'equal':
      return 'already set'
    case 'larger':
      return `larger than the configured ${wanted}; --conntrack-lower lowers it`
    case 'missing':
      return `this kernel has no such sysctl; wanted ${wanted}`
  }
}

function printText(
  { tuned, answers }: { readonly tuned: TuneReport; readonly answers: readonly Answer[] },
  io: Io,
): void {
  const rows = settingRows(tuned).map(({ setting, value, result, text }) => [
    setting,
    value === undefined ? '-' : String(value),
    result,
    text,
  ])
  for (const { subject, answers: isThere, text } of answers)
    rows.push([subject, '-', isThere ? 'ok' : 'failed', text])
  io.out(tableText(['WHAT', 'VALUE', 'RESULT', 'WHY'], rows, { color: io.color }))
}
