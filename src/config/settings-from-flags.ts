import { parseIp, whyNotIp } from '../base/ip.ts'
import type { ModeFields } from '../modes/mode.ts'
import { MODES } from '../modes/registry.ts'
import { splitHostPort, withPort } from './bind-address.ts'
import { parseGates } from './feature-gates.ts'
import { flagValue, type ScalarKind, whyNotValue } from './field-value.ts'
import { FIELD_PATHS, type FieldPath, type FieldValue, fieldAt, type VmoduleItem } from './fields.ts'
import { type FlagReader, quote } from './flag-reader.ts'
import { modeSettingsOf } from './mode-fields.ts'
import { Settings } from './settings.ts'

export const HEALTHZ_PORT = 10_256
export const METRICS_PORT = 10_249

/** kube-proxy's own pairings, which depend on the mode. */
function pairingsOf({
  masqueradeAll,
  minSyncPeriod,
  syncPeriod,
  periodFlags,
}: ModeFields): readonly Pairing[] {
  return [
    { path: masqueradeAll, flag: 'masquerade-all', kind: 'bool' },
    { path: minSyncPeriod, flag: periodFlags.min, kind: 'duration' },
    { path: syncPeriod, flag: periodFlags.sync, kind: 'duration' },
  ]
}

/** What the flags of kube-proxy say, in the shape of its configuration file. Texts that mean nothing are errors of `reader`. */
export function settingsFromFlags(reader: FlagReader): Settings {
  const settings = new Settings(flagLabel)
  for (const path of FIELD_PATHS) {
    const { flag } = fieldAt(path)
    if (flag !== undefined) setFromFlag(settings, path, flag, reader)
  }
  for (const pairing of pairingsOf(modeSettingsOf(settings))) setScalar(settings, reader, pairing)
  // Those of other modes are without effect; their texts are read all the same, as kube-proxy does.
  const others = MODES.map(({ settings: { periodFlags } }) => periodFlags)
  const idle = new Set(others.flatMap(flags => Object.values(flags)))
  for (const flag of Object.values(modeSettingsOf(settings).periodFlags)) idle.delete(flag)
  for (const flag of idle) readScalar(reader, flag, 'duration')
  return settings
}

/** Fields that the flag which sets them is not paired with in the table. */
const LABELS: Readonly<Partial<Record<FieldPath, string>>> = {
  'conntrack.tcpFinWaitTimeout': '--conntrack-tcp-timeout-fin-wait',
  'conntrack.tcpTimeWaitTimeout': '--conntrack-tcp-timeout-time-wait',
  hostnameOverride: '--hostname-override',
  'iptables.masqueradeAll': '--masquerade-all',
  'iptables.minSyncPeriod': '--min-sync-period',
  'iptables.syncPeriod': '--sync-period',
  'ipvs.minSyncPeriod': '--min-sync-period',
  'ipvs.syncPeriod': '--sync-period',
  'nftables.masqueradeAll': '--masquerade-all',
  'nftables.masqueradeBit': '--masquerade-bit',
  'nftables.minSyncPeriod': '--min-sync-period',
  'nftables.syncPeriod': '--sync-period',
}

function flagLabel(path: FieldPath): string {
  const { flag } = fieldAt(path)
  return flag === undefined ? (LABELS[path] ?? path) : `--${flag}`
}

/** Flags of logging count beside a file, too: they replace what it says, and module levels come before its own. */
export function overlayLogging(settings: Settings, fromFlags: Settings): void {
  const before = settings.vmodule()
  // kube-proxy registers these two flags anew for the file, which resets what the file says.
  for (const format of ['json', 'text'] as const) {
    const path = `logging.options.${format}.splitStream` as const
    settings.set(path, { value: false, label: settings.label(path) })
  }
  for (const path of FIELD_PATHS) {
    if (!path.startsWith('logging.') || !fromFlags.says(path)) continue
    const value = fromFlags.value(path)
    if (value !== undefined) settings.set(path, { value, label: fromFlags.label(path), exact: true })
  }
  if (!fromFlags.says('logging.vmodule')) return
  const value = [...fromFlags.vmodule(), ...before]
  settings.set('logging.vmodule', { value, label: fromFlags.label('logging.vmodule') })
}

/** A name given by flag beats that of a file. */
export function overlayHostName(settings: Settings, reader: FlagReader): void {
  const text = reader.text('hostname-override') ?? ''
  if (text === '') return
  const value = text.trim().toLowerCase()
  if (value === '') reader.fail('--hostname-override', 'is blank')
  settings.set('hostnameOverride', { value, label: '--hostname-override', exact: true })
}

/**
 * Folds --healthz-port and --metrics-port in: 0 takes the address away, another port, or the default, is given to an
 * address that has none. The default addresses have one already, so that the flags alone change nothing, as in
 * kube-proxy; the result names those that were given in vain.
 */
export function foldPorts(settings: Settings, reader: FlagReader): readonly string[] {
  return PORT_FLAGS.filter(({ flag, path, fallback }) => {
    const given = readScalar(reader, flag, 'int32')
    const port = typeof given === 'number' ? given : fallback
    const before = settings.text(path)
    const after = port === 0 ? '' : withPort(before, port)
    if (after === before) return typeof given === 'number'
    const label = typeof given === 'number' ? `--${flag}` : settings.label(path)
    settings.set(path, { value: after, label, exact: true })
    return false
  }).map(({ flag }) => `--${flag}`)
}

const PORT_FLAGS = [
  { flag: 'healthz-port', path: 'healthzBindAddress', fallback: HEALTHZ_PORT },
  { flag: 'metrics-port', path: 'metricsBindAddress', fallback: METRICS_PORT },
] as const

function setFromFlag(settings: Settings, path: FieldPath, flag: string, reader: FlagReader): void {
  if (!reader.given(flag)) return
  const { kind } = fieldAt(path)
  const label = `--${flag}`
  if (kind === 'texts') settings.set(path, { value: reader.list(flag), label, exact: true })
  else if (kind === 'vmodule') settings.set(path, { value: readVmodule(reader, flag), label })
  else if (kind === 'gates') setGates(settings, reader)
  else {
    const value = isAddress(path) ? readAddress(reader, path, flag) : readScalar(reader, flag, kind)
    if (value !== undefined) settings.set(path, { value, label, exact: true })
  }
}

function setGates(settings: Settings, reader: FlagReader): void {
  const label = '--feature-gates'
  const parsed = parseGates(reader.all('feature-gates'))
  if ('problem' in parsed) reader.fail(label, parsed.problem)
  else {
    const itemLabels = Object.keys(parsed.gates).map(() => label)
    settings.set('featureGates', { value: parsed.gates, label, itemLabels })
  }
}

/** A flag that sets a field which the table of fields does not pair it with. */
export interface Pairing {
  readonly path: FieldPath
  readonly flag: string
  readonly kind: ScalarKind
}

export function setScalar(settings: Settings, reader: FlagReader, { path, flag, kind }: Pairing): void {
  const value = readScalar(reader, flag, kind)
  if (value !== undefined) settings.set(path, { value, label: `--${flag}`, exact: true })
}

function readScalar(reader: FlagReader, flag: string, kind: ScalarKind): FieldValue | undefined {
  const text = reader.text(flag)
  if (text === undefined) return undefined
  const value = flagValue(kind, text)
  if (value === undefined) reader.fail(`--${flag}`, whyNotValue(kind, text))
  return value
}

type AddressPath = 'bindAddress' | 'healthzBindAddress' | 'metricsBindAddress'

function isAddress(path: FieldPath): path is AddressPath {
  return path === 'bindAddress' || path === 'healthzBindAddress' || path === 'metricsBindAddress'
}

/** An empty text leaves the default, as in kube-proxy, whatever its help says. */
function readAddress(reader: FlagReader, path: AddressPath, flag: string): string | undefined {
  const text = reader.text(flag) ?? ''
  if (text === '' || parseIp(text) !== undefined) return text === '' ? undefined : text
  const parts = path === 'bindAddress' ? undefined : splitHostPort(text)
  if (parts === undefined) reader.fail(`--${flag}`, `${quote(text)} is ${whyNotIp(text)}${OR_PORT[path]}`)
  else if (parseIp(parts.host) === undefined)
    reader.fail(`--${flag}`, `${quote(parts.host)} is ${whyNotIp(parts.host)}`)
  else return text
  return undefined
}

const OR_PORT: Readonly<Record<AddressPath, string>> = {
  bindAddress: '',
  healthzBindAddress: `, with or without :PORT`,
  metricsBindAddress: `, with or without :PORT`,
}

/** `file=2,other*=4`. */
function readVmodule(reader: FlagReader, flag: string): readonly VmoduleItem[] {
  const items: VmoduleItem[] = []
  for (const pair of reader.list(flag)) {
    const [, filePattern = '', level = ''] = /^([^=]+)=(\d{1,10})$/.exec(pair) ?? []
    const verbosity = flagValue('uint32', level)
    if (typeof verbosity === 'number') items.push({ filePattern, verbosity })
    else reader.fail(`--${flag}`, `${quote(pair)} is not written PATTERN=LEVEL`)
  }
  return items
}
