import type { FlagReader, FlagSpec } from '../flag.ts'

const GROUP_MAX = 65_535

export const LOG_FLAG: FlagSpec = {
  name: 'log-rejects',
  kind: 'integer',
  placeholder: 'GROUP',
  default: '0',
  group: 'Traffic',
  help: `log rejected and dropped packets to this NFLOG group, 1 to ${GROUP_MAX}, for \`kprobe drops\`; 0: log none; nftables and iptables mode`,
}

/** Reads the flag, which is the only place of this setting, also with --config. */
export function readLogGroup(reader: FlagReader): number {
  return reader.integer(LOG_FLAG.name, { min: 0, max: GROUP_MAX, fallback: 0 })
}

export function logFlagText({
  logRejects,
}: {
  readonly logRejects: number
}): Readonly<Record<string, string>> {
  return { [LOG_FLAG.name]: `${logRejects}` }
}
