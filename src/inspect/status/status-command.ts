import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE } from '../../cli/io.ts'
import { flaggedCommand } from '../../cli/request.ts'
import { MODEL_SOCKET_FLAG, WITHOUT_EFFECT } from '../../config/flags.ts'
import { defaultAdminSocket, INSTANCE_FLAG } from '../../config/own-flags.ts'
import { collectStatus } from './collect.ts'
import { nodeSources } from './node-sources.ts'
import { statusText } from './status-text.ts'

const SOCKET = {
  ...MODEL_SOCKET_FLAG,
  help: 'unix socket of the daemon; with --service-proxy-name=NAME the default is /run/kprobe/admin-NAME.sock',
} as const

export const command = flaggedCommand({
  name: 'status',
  description:
    'Says whether this node is well, on one screen: the daemon, its source, Services, kernel, connections and credentials,\n' +
    'with the problems first. Reads the daemon and the kernel, and changes nothing. Exits 0 when the node is well, 3 when\n' +
    'it is impaired or down, and 1 when that is unknown. `kprobe nodes status` prints a line for each node.',
  details: [
    'A node is',
    '  well       all Services are served as configured',
    '  unknown    no problem was found, and a part could not be read',
    '  impaired   some traffic fails, or may fail soon',
    '  down       no daemon runs, or no Service is programmed',
    '',
    WITHOUT_EFFECT,
  ],
  listed: [SOCKET, INSTANCE_FLAG, outputFlag(OUTPUTS)],
  flags: [outputFlag(OUTPUTS)],
  read: reader => ({ output: reader.oneOf('output', OUTPUTS, 'text') }),
  async run({ output }, { config }, io) {
    const { adminSocket, serviceProxyName } = config
    const socket = adminSocket || defaultAdminSocket(serviceProxyName)
    const status = await collectStatus(nodeSources({ socket, config }))
    if (output === 'text') io.out(statusText(status, io))
    else await writeDocument(status, output, io)
    if (status.verdict === 'unknown') {
      // `kprobe nodes status` prints why a command failed.
      if (output !== 'text') io.err(`${status.sentence}\n`)
      return EXIT_FAILED
    }
    return status.verdict === 'well' ? EXIT_FINE : EXIT_DIFFERENT
  },
})
