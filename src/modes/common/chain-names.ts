/** Names of the chains that the tables of every mode have. */
export const CHAIN_PREROUTING = 'nat-prerouting'
export const CHAIN_OUTPUT = 'nat-output'
export const CHAIN_POSTROUTING = 'nat-postrouting'
/** This chain runs before the nat chains of other programs translate sources. */
export const CHAIN_EARLY_POSTROUTING = 'early-postrouting'
/** This chain runs behind the nat chains of other programs. It exists where there are ServiceCIDRs. */
export const CHAIN_LATE_PREROUTING = 'late-prerouting'
export const CHAIN_LATE_OUTPUT = 'late-output'
export const CHAIN_SERVICES = 'services'
/** The name is not `reject`, because that is a keyword of nft, which cannot load a chain with that name. */
export const CHAIN_REJECT = 'refuse'
export const CHAIN_FIREWALL = 'firewall-check'
